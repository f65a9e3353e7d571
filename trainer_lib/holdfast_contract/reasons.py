"""Condition types, reasons, causes, outcomes, goodput buckets and metric names.

A reason is written by the operator's ``decide`` and used verbatim as condition reason and Event reason, so that logs,
``kubectl describe``, metrics and tests agree.
"""

from __future__ import annotations

import enum


class Condition(enum.StrEnum):
    """Three-valued conditions on a TrainingJob; written by the operator, read by people and tools."""

    ADMITTED = "Admitted"  # the spec is one that the operator can run, and the run folder is ours
    RUNNING = "Running"  # every worker runs the active attempt and steps complete
    CHECKPOINT_VALID = "CheckpointValid"  # a committed checkpoint exists to restore from
    PREEMPTED = "Preempted"  # a notice is being acted on
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    READY = "Ready"  # derived from the others


class Cause(enum.StrEnum):
    """Why an attempt ended; every restart has exactly one. Written by the operator."""

    PREEMPTION = "Preemption"
    NODE_LOST = "NodeLost"
    POD_LOST = "PodLost"
    EVICTED = "Evicted"
    OUT_OF_MEMORY = "OutOfMemory"
    FAILURE = "Failure"
    HANG = "Hang"
    STORAGE_ERROR = "StorageError"
    ORPHANED = "Orphaned"
    USER_REQUEST = "UserRequest"
    UNKNOWN = "Unknown"

    @property
    def budgeted(self) -> bool:
        """Whether a restart of this cause consumes the failure budget. A cause nobody knows does."""
        return self in _BUDGETED


_BUDGETED = frozenset({Cause.OUT_OF_MEMORY, Cause.FAILURE, Cause.HANG, Cause.STORAGE_ERROR, Cause.UNKNOWN})


class Reason(enum.StrEnum):
    """Reasons of conditions and Events."""

    # lifecycle
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    FOREIGN_CHECKPOINT_OWNER = "ForeignCheckpointOwner"
    INSPECTING_STORAGE = "InspectingStorage"
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    ATTEMPT_STARTED = "AttemptStarted"
    SUSPENDED_BY_USER = "SuspendedByUser"
    NOT_SUSPENDED = "NotSuspended"
    SUSPENDING = "Suspending"
    RESUMED = "Resumed"
    COMPLETED = "Completed"
    NOT_FINISHED = "NotFinished"
    DELETING = "Deleting"
    STORAGE_UNUSABLE = "StorageUnusable"
    WORKERS_PENDING = "WorkersPending"
    WORKERS_SILENT = "WorkersSilent"
    # checkpoints
    CHECKPOINT_COMMITTED = "CheckpointCommitted"
    CHECKPOINT_RESTORED = "CheckpointRestored"
    CHECKPOINT_REJECTED = "CheckpointRejected"
    NO_CHECKPOINT_YET = "NoCheckpointYet"
    NO_VALID_CHECKPOINT = "NoValidCheckpoint"
    SAVE_FAILED = "SaveFailed"
    # preemption
    PREEMPTION_NOTICED = "PreemptionNoticed"
    PREEMPTION_SAVED = "PreemptionSaved"
    PREEMPTION_ALREADY_FRESH = "PreemptionAlreadyFresh"
    PREEMPTION_TOO_LATE = "PreemptionTooLate"
    PREEMPTION_SAVE_FAILED = "PreemptionSaveFailed"
    PREEMPTION_CANCELLED = "PreemptionCancelled"
    NO_NOTICE = "NoNotice"
    WORKER_MOVED = "WorkerMoved"
    # recovery
    WORKER_CRASHED = "WorkerCrashed"
    WORKER_STOPPED = "WorkerStopped"
    POD_LOST = "PodLost"
    NODE_LOST = "NodeLost"
    RESTARTING_IN_PLACE = "RestartingInPlace"
    RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"
    NO_PROGRESS = "NoProgress"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    POD_CREATION_FAILED = "PodCreationFailed"


class SaveOutcome(enum.StrEnum):
    """How a save request ended. Written by the library (the agent if no trainer runs), judged by the operator."""

    PENDING = "pending"  # agreed or being written
    COMMITTED = "committed"  # the manifest is durable
    FRESH = "fresh"  # the newest committed checkpoint is already of the last completed step
    TOO_LATE = "too-late"  # the forecast exceeds the seconds left; nothing was started
    FAILED = "failed"  # storage error, crash, or abandoned agreement
    CANCELLED = "cancelled"  # the notice vanished before the save was needed


class Bucket(enum.StrEnum):
    """Where a second of a job's life went. Library and agent report the first group, the operator the second."""

    PRODUCTIVE = "productive"  # steps that count towards the final state
    REWORK = "rework"  # steps done again after a restart from an older checkpoint
    STARTUP = "startup"  # process start, imports, joining the world
    RESTORE = "restore"  # choosing, verifying and loading a checkpoint
    COMPILE = "compile"  # up to the completion of the attempt's first step
    SAVE_STALL = "save-stall"  # the loop waited for a save
    IDLE = "idle"  # an agent without a running trainer
    QUEUED = "queued"  # before the first worker's agent spoke
    RECOVERY = "recovery"  # no trainer runs because an attempt ended and the next has not begun
    SUSPENDED = "suspended"


class Metric(enum.StrEnum):
    """Prometheus names; exported by the operator."""

    RECONCILES = "holdfast_reconciles_total"  # {result}
    RECONCILE_SECONDS = "holdfast_reconcile_seconds"
    RESTARTS = "holdfast_restarts_total"  # {cause}
    PREEMPTION_SAVES = "holdfast_preemption_saves_total"  # {outcome}
    PREEMPTION_SECONDS_TO_SPARE = "holdfast_preemption_seconds_to_spare"
    CHECKPOINTS_REJECTED = "holdfast_checkpoints_rejected_total"
    STEPS_LOST = "holdfast_steps_lost_total"
    SYNC_REQUESTS = "holdfast_sync_requests_total"  # {code}
    WATCH_LAST_EVENT = "holdfast_watch_last_event_timestamp_seconds"  # {resource}
    LEADER = "holdfast_leader"  # 1 on the active replica
    JOB_STEP = "holdfast_job_step"  # {namespace, name}; scrape-time, vanishes with the object
    JOB_ATTEMPT = "holdfast_job_attempt"  # {namespace, name}
    JOB_GOODPUT_SECONDS = "holdfast_job_goodput_seconds"  # {namespace, name, bucket}
    JOB_NEWEST_CHECKPOINT = "holdfast_job_newest_checkpoint_timestamp_seconds"  # {namespace, name}
