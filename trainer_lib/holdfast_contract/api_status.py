"""The status of a TrainingJob, which the operator alone writes, as pydantic models.

A new operator continues from the status and from what it observes; no other state is stored. Instants are read from the
operator's own wall clock and compared with that clock only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from holdfast_contract.api_spec import MAX_REPLICAS
from holdfast_contract.manifest import CheckpointKey
from holdfast_contract.reasons import Cause, SaveOutcome

MAX_CONDITIONS: Final = 16
MAX_REJECTED: Final = 16
MAX_FAILURE_TIMES: Final = 128
MAX_MESSAGE: Final = 4096
"""Longest text for people. The operator cuts what it takes from reports to it."""
MAX_LAST_LINES: Final = 8192
MAX_SHOWN_METRICS: Final = 32
"""How many of the metrics that a worker reports the operator shows."""
MAX_DIGEST: Final = 128
"""Longest digest of a manifest. The operator cuts what a worker reports to it; a digest that long is wrong anyway, and
no checkpoint matches the pin made from it."""
MAX_STANDING_NOTICES: Final = 128
MAX_CALLED_OFF: Final = 4096
MAX_SETBACKS: Final = 256

Text = Annotated[str, Field(max_length=MAX_MESSAGE)]
ShortText = Annotated[str, Field(max_length=317)]
Digest = Annotated[str, Field(max_length=MAX_DIGEST)]
Count = Annotated[int, Field(ge=0)]
SavePurpose = Literal["Preemption", "Switch", "Suspend", "Delete"]
"""Why the operator asks for a save. Written and read by the operator alone, across its restarts."""


class StatusModel(BaseModel):
    """Base of all status models. Unknown fields are ignored: a newer operator may have written them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class ConditionStatus(StatusModel):
    """One aspect of the job's state."""

    type: ShortText
    """Type of the condition, in CamelCase."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word for programs."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, as a sentence for people."""
    observed_generation: Count = 0
    """metadata.generation of the spec that the condition refers to."""
    last_transition_time: datetime
    """When status last changed."""


class CheckpointPoint(StatusModel):
    """One committed checkpoint."""

    attempt: Count
    """Attempt that wrote it."""
    step: Count
    """Step after which it was made."""
    digest: Digest = ""
    """SHA-256 of its manifest, in hex."""
    committed_at: datetime | None = None
    """When the operator learned that it is committed."""

    @property
    def key(self) -> CheckpointKey:
        """What identifies the checkpoint."""
        return CheckpointKey(self.attempt, self.step)


class RejectedPoint(StatusModel):
    """A checkpoint that must not be restored."""

    attempt: Count
    """Attempt that wrote it."""
    step: Count
    """Step after which it was made."""
    reason: Text
    """Why it must not be restored."""

    @property
    def key(self) -> CheckpointKey:
        """Which checkpoint is rejected."""
        return CheckpointKey(self.attempt, self.step)


class CheckpointStatus(StatusModel):
    """The checkpoints of the training run."""

    run: ShortText = ""
    """Folder of this training run under checkpoint.path."""
    newest: CheckpointPoint | None = None
    """The newest checkpoint that is known to be committed."""
    pinned: CheckpointPoint | None = None
    """The newest checkpoint that the current attempt may restore; absent if it starts from scratch."""
    restored: CheckpointPoint | None = None
    """The checkpoint that all workers of the current attempt agreed on and restored."""
    rejected: Annotated[tuple[RejectedPoint, ...], Field(max_length=MAX_REJECTED)] = ()
    """Checkpoints found to be damaged or foreign, the latest findings first."""


class NoticeStatus(StatusModel):
    """A preemption notice for a node."""

    node: ShortText
    """Name of the node."""
    source: ShortText
    """Name of the pattern that recognised the notice."""
    deadline: datetime | None = None
    """When the node is expected to go away; absent if nothing says so, as with a cordon."""
    noticed_at: datetime | None = None
    """When the operator first saw the notice."""


class PreemptionStatus(StatusModel):
    """The current or the last preemption: its notice and the outcome of its save."""

    notice: NoticeStatus | None = None
    """The notice that binds: of those that replace workers the one with the earliest deadline, else an advisory one."""
    standing: bool = False
    """Whether the notice is still present and being acted on."""
    save_id: Annotated[str, Field(max_length=128)] = ""
    """Identifier of the save request for this notice."""
    outcome: SaveOutcome | None = None
    """State of the save: pending, committed, fresh, too-late, failed or cancelled."""
    reason: Text = ""
    """Why the save has this outcome."""
    saved_step: Count | None = None
    """Step of the checkpoint that the save request led to."""
    seconds_to_spare: float | None = None
    """Seconds from when the operator saw that the save was committed to the deadline."""


class StandingNotice(StatusModel):
    """A notice that stands, and the save that answers it. Its key is the node with the pod or the source."""

    node: ShortText
    """Name of the node."""
    pod: ShortText = ""
    """Name of the pod, if only that pod ends; empty if the whole node does."""
    source: ShortText
    """What gave the notice."""
    urgency: Literal["imminent", "planned", "advisory"]
    """imminent: the worker is replaced before the deadline. planned: it is replaced once the new pod is ready. advisory:
    it is not replaced."""
    noticed_at: datetime
    """When the operator saw the notice first."""
    deadline: datetime | None = None
    """When the node is expected to go; absent if nothing says so."""
    save_id: Annotated[str, Field(max_length=128)] = ""
    """Identifier of the save request that answers the notice in the active attempt."""
    tries: Count = 0
    """How many saves were requested for the notice in the active attempt."""
    outcome: SaveOutcome | None = None
    """How that save ended; absent if none was requested in the active attempt."""
    reason: Text = ""
    """Why the save ended so."""
    saved_step: Count | None = None
    """Step of the checkpoint that answers the notice."""
    seconds_to_spare: float | None = None
    """Seconds between the moment the save was seen committed and the deadline."""


class Setback(StatusModel):
    """Pods of a worker that became unusable before their attempt began: rejected by the kubelet, evicted, deleted, lost."""

    worker: Count
    """Index of the worker."""
    count: Annotated[int, Field(ge=1)]
    """How many in a row."""
    reason: ShortText = ""
    """Why the last one became unusable."""
    node: ShortText = ""
    """Node of the last one; the next pod prefers other nodes."""
    retry_at: datetime
    """The next pod is not created before this."""


class Transition(StatusModel):
    """The next attempt in preparation. It begins once every worker's agent has reported."""

    attempt: Annotated[int, Field(ge=1)]
    """The attempt that begins."""
    cause: Cause | None = None
    """Why the previous attempt ends; absent for the first."""
    training: bool = False
    """Whether the previous attempt trains until the switch, as when a worker moves away from a node with a notice."""
    workers: Annotated[tuple[Count, ...], Field(max_length=MAX_REPLICAS)] = ()
    """Indices of the workers that get a new pod; the others restart in place."""
    nodes: Annotated[tuple[ShortText, ...], Field(max_length=MAX_REPLICAS)] = ()
    """Names of the nodes that the new pods avoid."""
    began_at: datetime | None = None
    """When the preparation began."""
    deadline: datetime | None = None
    """The latest instant of the switch, ready or not; absent if it happens only once the new pods are ready."""


class SaveStatus(StatusModel):
    """A save that the operator has asked the workers for."""

    id: Annotated[str, Field(max_length=128)]
    """Identifier of the request, unique within the job."""
    purpose: SavePurpose
    """What the save is for. All but Preemption end the trainers once it is answered."""
    requested_at: datetime
    """When it was requested."""
    deadline: datetime
    """When it must be committed."""
    from_step: Count = 0
    """Last completed step when it was requested. A checkpoint of this attempt at or after that step answers it."""

    @property
    def stop(self) -> bool:
        """Whether the trainers end once it is answered."""
        return self.purpose != "Preemption"


class AccountedPod(StatusModel):
    """What the agent of worker 0 had reported when goodput was last accounted; the next report is counted from here."""

    uid: Annotated[str, Field(max_length=64)]
    """UID of the pod."""
    milliseconds: Annotated[dict[str, Count], Field(max_length=32)] = Field(default_factory=dict)
    """Milliseconds per bucket since that agent started."""


class ProgressStatus(StatusModel):
    """How far training is."""

    attempt: Count = 0
    """Attempt that completed the step."""
    step: Count
    """Last step whose result exists in every worker."""
    step_seconds: float | None = None
    """Recent median time of a step."""
    total_steps: Count | None = None
    """Step at which training ends, if the script says so."""
    steps_per_second: float | None = None
    """Recent speed."""
    metrics: Annotated[dict[str, float], Field(max_length=MAX_SHOWN_METRICS)] = Field(default_factory=dict)
    """Last metrics that the script committed."""
    observed_at: datetime | None = None
    """When the operator saw this."""


class WorkersStatus(StatusModel):
    """How many workers there are."""

    desired: Count = 0
    """Pods that should exist now."""
    ready: Count = 0
    """Pods whose agent reports."""
    training: Count = 0
    """Workers whose trainer completes steps of the active attempt."""


class Goodput(StatusModel):
    """Where the seconds of the job's life went; every second is in exactly one bucket."""

    buckets: Annotated[dict[str, float], Field(max_length=32)] = Field(default_factory=dict)
    """Seconds per bucket."""
    accounted_until: datetime | None = None
    """Up to when the buckets account."""
    counted: AccountedPod | None = None
    """The part of worker 0's own account that the buckets already contain."""
    steps_lost: Count = 0
    """Steps that were repeated or have to be."""


class FailureStatus(StatusModel):
    """How often training failed. Adaptive checkpoint intervals follow it."""

    count: Count = 0
    """How many attempts ended unexpectedly. Attempts that were stopped on request do not count, nor do those that had a
    preemption notice and saved their last step."""
    running_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Seconds for which trainers had run when the active attempt began."""
    stepless: Count = 0
    """How many attempts in a row ended before they completed a step; from the second on, the next one waits."""


class AttemptEnd(StatusModel):
    """How an attempt ended."""

    attempt: Count
    """The attempt."""
    cause: Cause
    """Why it ended."""
    message: Text = ""
    """What happened, as a sentence."""
    worker: Count | None = None
    """Index of the worker that ended first, if a worker did."""
    exit_code: int | None = None
    """Exit code of that worker's trainer."""
    last_lines: Annotated[str, Field(max_length=MAX_LAST_LINES)] = ""
    """Last lines that this trainer wrote to standard error."""


class TrainingJobStatus(StatusModel):
    """What the operator has observed and decided."""

    observed_generation: Count = 0
    """metadata.generation of the spec that this status answers."""
    state: Annotated[str, Field(max_length=63)] = ""
    """One word for people, derived from the conditions. No program should read it."""
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=MAX_CONDITIONS)] = ()
    """Aspects of the job's state, each True, False or Unknown."""
    attempt: Count = 0
    """Number of the newest attempt. Grows before any pod or process of that attempt exists and never shrinks."""
    active_attempt: Count = 0
    """Attempt whose processes may run now: attempt, except while that one is being prepared."""
    transition: Transition | None = None
    """The next attempt in preparation, if there is one."""
    save: SaveStatus | None = None
    """The save that the workers are asked for now, if there is one."""
    saves_requested: Count = 0
    """Number of saves that were ever requested; makes the identifiers of requests unique."""
    take_over_attempt: Count | None = None
    """Attempt that may replace the run's owner record, because its owner is gone or the spec says so."""
    restarts: Annotated[dict[str, Count], Field(max_length=32)] = Field(default_factory=dict)
    """Restarts per cause."""
    restarts_total: Count = 0
    """Sum of restarts over all causes."""
    failures: FailureStatus = Field(default_factory=FailureStatus)
    """How often training failed, and in how many seconds of training."""
    failure_times: Annotated[tuple[datetime, ...], Field(max_length=MAX_FAILURE_TIMES)] = ()
    """When the failures occurred that count against recovery.maxFailures."""
    no_progress: Count = 0
    """Failed attempts in a row without a new checkpoint."""
    end_seen_at: datetime | None = None
    """When the operator first saw that a trainer of the active attempt ended, until it knows which one ended first."""
    last_end: AttemptEnd | None = None
    """How the last finished attempt ended."""
    checkpoint: CheckpointStatus = Field(default_factory=CheckpointStatus)
    """The checkpoints of the training run."""
    preemption: PreemptionStatus | None = None
    """The current or the last preemption."""
    notices: Annotated[tuple[StandingNotice, ...], Field(max_length=MAX_STANDING_NOTICES)] = ()
    """The notices that stand, each with the save that answers it; the one that binds comes first."""
    setbacks: Annotated[tuple[Setback, ...], Field(max_length=MAX_SETBACKS)] = ()
    """Workers whose pods became unusable before the attempt in preparation began. Empty once it begins."""
    called_off: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_CALLED_OFF)] = ()
    """UIDs of pods that were created for a replacement that was called off. They never become workers."""
    progress: ProgressStatus | None = None
    """How far training is."""
    workers: WorkersStatus = Field(default_factory=WorkersStatus)
    """How many workers there are."""
    goodput: Goodput = Field(default_factory=Goodput)
    """Where the seconds of the job's life went."""
    start_time: datetime | None = None
    """When the operator first acted on the job."""
    completion_time: datetime | None = None
    """When the job succeeded or failed."""
