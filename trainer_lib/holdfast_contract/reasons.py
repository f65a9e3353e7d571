"""Condition types, reasons, causes, outcomes, goodput buckets and metric names.

Each class says who writes its values and who reads them, each value what it means. The same word appears in status,
Events, logs, metrics and tests.
"""

from __future__ import annotations

import enum


class Condition(enum.StrEnum):
    """Types of the three-valued conditions on a TrainingJob. Written by the operator, read by it, people and tools."""

    ADMITTED = "Admitted"  # the operator can run the spec, and the run's folder belongs to this job
    RUNNING = "Running"  # every worker runs the active attempt and completes steps
    CHECKPOINT_VALID = "CheckpointValid"  # a committed checkpoint exists to restore from
    PREEMPTED = "Preempted"  # a preemption notice is being acted on
    SUSPENDED = "Suspended"  # spec.suspend is true, and the trainers have ended
    SUCCEEDED = "Succeeded"  # training reached its end
    FAILED = "Failed"  # the job has failed and starts no further attempt
    READY = "Ready"  # derived from the others: the job trains or has succeeded


class Cause(enum.StrEnum):
    """Why an attempt ended; every restart has exactly one cause.

    Written by the operator into status, Events and metrics, and read there by it, people and tools. An agent writes
    HANG and OUT_OF_MEMORY into ``TrainerExit.cause``, where the operator reads them.
    """

    PREEMPTION = "Preemption"  # the platform reclaimed the node, or the scheduler preempted the pod
    NODE_LOST = "NodeLost"  # the node no longer responds or is gone
    POD_LOST = "PodLost"  # a pod vanished or fell silent, and the node is fine
    EVICTED = "Evicted"  # the kubelet or the eviction API removed the pod
    OUT_OF_MEMORY = "OutOfMemory"  # the kernel killed the trainer or its container for lack of memory
    FAILURE = "Failure"  # the trainer ended by itself with an error
    HANG = "Hang"  # a trainer made no progress within its limit, or did not finish when the others did
    STORAGE_ERROR = "StorageError"  # the trainer could not use storage
    ORPHANED = "Orphaned"  # the agent ended because it could not reach the operator
    USER_REQUEST = "UserRequest"  # the user suspended or resumed the job, or its deadline passed
    UNKNOWN = "Unknown"  # nothing says why

    @property
    def budgeted(self) -> bool:
        """Whether a restart for this cause consumes the failure budget. An unknown cause does."""
        return self in _BUDGETED


_BUDGETED = frozenset({Cause.OUT_OF_MEMORY, Cause.FAILURE, Cause.HANG, Cause.STORAGE_ERROR, Cause.UNKNOWN})


class Reason(enum.StrEnum):
    """Reasons of conditions and Events. Written by the operator, read by people and tools.

    The operator itself reads some of them again: the status that it wrote is its only memory.
    """

    # lifecycle
    ACCEPTED = "Accepted"  # the job is admitted
    INVALID_SPEC = "InvalidSpec"  # the operator refuses the spec that the API server admitted
    FOREIGN_CHECKPOINT_OWNER = "ForeignCheckpointOwner"  # the run's owner record names another job
    INSPECTING_STORAGE = "InspectingStorage"  # worker 0 is inspecting the run's folder
    WAITING_FOR_WORKERS = "WaitingForWorkers"  # some workers' agents have not reported yet
    STARTING = "Starting"  # trainers start, restore and compile
    TRAINING = "Training"  # every worker completes steps
    RECOVERING = "Recovering"  # an attempt ended, and the next one follows
    ATTEMPT_STARTED = "AttemptStarted"  # an attempt began with at least one new pod
    SUSPENDED_BY_USER = "SuspendedByUser"  # spec.suspend is true, and the trainers have ended
    NOT_SUSPENDED = "NotSuspended"  # spec.suspend has been false from the start
    SUSPENDING = "Suspending"  # the workers save and stop because spec.suspend became true
    RESUMED = "Resumed"  # spec.suspend became false again
    COMPLETED = "Completed"  # training reached its end
    NOT_FINISHED = "NotFinished"  # the job has neither succeeded nor failed
    DELETING = "Deleting"  # the workers save and stop because the job is being deleted
    STORAGE_UNUSABLE = "StorageUnusable"  # worker 0 cannot use the checkpoint path
    WORKERS_PENDING = "WorkersPending"  # new pods are not scheduled or do not start
    WORKERS_SILENT = "WorkersSilent"  # agents have not reported for longer than the limit
    # checkpoints
    CHECKPOINT_COMMITTED = "CheckpointCommitted"  # a committed checkpoint exists
    CHECKPOINT_RESTORED = "CheckpointRestored"  # an attempt continues from a checkpoint
    CHECKPOINT_REJECTED = "CheckpointRejected"  # a checkpoint was found to be damaged or foreign
    NO_CHECKPOINT_YET = "NoCheckpointYet"  # nothing is committed so far
    NO_VALID_CHECKPOINT = "NoValidCheckpoint"  # checkpoints exist, and none can be restored
    SAVE_FAILED = "SaveFailed"  # a trainer reported a storage error
    # preemption
    PREEMPTION_NOTICED = "PreemptionNoticed"  # a notice for a node of this job is acted on
    PREEMPTION_SAVED = "PreemptionSaved"  # the save for a notice is committed
    PREEMPTION_ALREADY_FRESH = "PreemptionAlreadyFresh"  # the newest checkpoint already holds the last step
    PREEMPTION_TOO_LATE = "PreemptionTooLate"  # the save would not have been committed before the deadline
    PREEMPTION_SAVE_FAILED = "PreemptionSaveFailed"  # the save for a notice failed
    PREEMPTION_CANCELLED = "PreemptionCancelled"  # the notice was withdrawn
    NO_NOTICE = "NoNotice"  # no node of this job has a notice
    WORKER_MOVED = "WorkerMoved"  # a worker moved away from a node with a notice
    # recovery
    WORKER_CRASHED = "WorkerCrashed"  # a worker ended before training did, and neither its pod nor its node was lost
    WORKER_STOPPED = "WorkerStopped"  # a worker ended cleanly after a requested save
    POD_LOST = "PodLost"  # a worker's pod vanished or fell silent
    NODE_LOST = "NodeLost"  # a worker's node no longer responds or is gone
    RESTARTING_IN_PLACE = "RestartingInPlace"  # an attempt began with the pods of the one before
    RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"  # more than recovery.maxFailures failures in the window
    NO_PROGRESS = "NoProgress"  # recovery.noProgressLimit failed attempts in a row without a new checkpoint
    DEADLINE_EXCEEDED = "DeadlineExceeded"  # activeDeadlineSeconds have passed
    POD_CREATION_FAILED = "PodCreationFailed"  # the API server refused a worker's pod


class SaveOutcome(enum.StrEnum):
    """State of a save request. Written by the library, or by the agent if no trainer runs; read by the operator."""

    PENDING = "pending"  # requested, agreed on or being written
    COMMITTED = "committed"  # the manifest is durable
    FRESH = "fresh"  # the newest committed checkpoint already holds the last completed step
    TOO_LATE = "too-late"  # the forecast exceeds the seconds left; nothing was started
    FAILED = "failed"  # storage error, crash, or abandoned agreement
    CANCELLED = "cancelled"  # the request was withdrawn before the save began

    @property
    def is_saved(self) -> bool:
        """Whether a committed checkpoint answers the request."""
        return self in {SaveOutcome.COMMITTED, SaveOutcome.FRESH}

    @property
    def is_final(self) -> bool:
        """Whether the request is answered: no later outcome replaces this one."""
        return self is not SaveOutcome.PENDING


class Bucket(enum.StrEnum):
    """Where a second of a job's life went. The operator adds all buckets up in status and metrics.

    Library and agent write the buckets from PRODUCTIVE to IDLE, the operator the rest. It also moves seconds from
    PRODUCTIVE to REWORK when it learns that steps were lost.
    """

    PRODUCTIVE = "productive"  # steps that count towards the final state
    REWORK = "rework"  # steps repeated after a restart from an older checkpoint
    STARTUP = "startup"  # process start, imports, joining the world
    RESTORE = "restore"  # choosing, verifying and loading a checkpoint
    COMPILE = "compile"  # up to the completion of the attempt's first step
    SAVE_STALL = "save-stall"  # the training loop waited for a save
    IDLE = "idle"  # an agent without a trainer; once an attempt began, the operator books it elsewhere
    QUEUED = "queued"  # before the first worker's agent reported
    RECOVERY = "recovery"  # no trainer runs because an attempt ended and the next has not begun
    SUSPENDED = "suspended"  # spec.suspend is true


class Metric(enum.StrEnum):
    """Names of Prometheus metrics, with {labels}. Exported by the operator, read by Prometheus and dashboards."""

    RECONCILES = "holdfast_reconciles_total"  # {result}: ok or error
    RECONCILE_SECONDS = "holdfast_reconcile_seconds"  # duration of a reconcile
    RESTARTS = "holdfast_restarts_total"  # {cause}
    PREEMPTION_SAVES = "holdfast_preemption_saves_total"  # {outcome}
    PREEMPTION_SECONDS_TO_SPARE = "holdfast_preemption_seconds_to_spare"  # from a save's commit to its deadline
    CHECKPOINTS_REJECTED = "holdfast_checkpoints_rejected_total"  # found to be damaged or foreign
    STEPS_LOST = "holdfast_steps_lost_total"  # steps that have to be repeated
    SYNC_REQUESTS = "holdfast_sync_requests_total"  # {code}: HTTP status of the answer
    WATCH_LAST_EVENT = "holdfast_watch_last_event_timestamp_seconds"  # {resource}
    CERTIFICATE_EXPIRY = "holdfast_control_certificate_expiry_timestamp_seconds"
    LEADER = "holdfast_leader"  # 1 on the active replica
    JOB_STEP = "holdfast_job_step"  # {namespace, name}; read at scrape time, gone with the object
    JOB_ATTEMPT = "holdfast_job_attempt"  # {namespace, name}
    JOB_GOODPUT_SECONDS = "holdfast_job_goodput_seconds"  # {namespace, name, bucket}
    JOB_NEWEST_CHECKPOINT = "holdfast_job_newest_checkpoint_timestamp_seconds"  # {namespace, name}
