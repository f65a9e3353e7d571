"""What a user asks for: the spec of a TrainingJob, as pydantic models.

The custom resource definition is generated from these models, so each attribute's docstring is what ``kubectl explain``
prints. The validators here repeat the definition's CEL rules: the API server refuses a bad object at the door, and the
operator, which may meet objects admitted by an older definition, refuses it again.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from holdfast_contract.api_base import FieldError, SpecModel
from holdfast_contract.api_template import DNS_LABEL_PATTERN, PodTemplate

MAX_REPLICAS: Final = 4096
MAX_FAILURES: Final = 100
MAX_SECONDS: Final = 366 * 24 * 3600
MAX_STEPS: Final = 1_000_000_000_000
MAX_NOTICES: Final = 32
RUN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?$"
METRIC_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.:/-]*$"
EXACTLY_ONE_MATCHER: Final = "exactly one of taint, label, annotation, condition"
EXACTLY_ONE_INTERVAL: Final = "exactly one of seconds, steps, adaptive"


def _given(model: BaseModel, *names: str) -> list[str]:
    return [name for name in names if getattr(model, name) is not None]


def _check_path(path: str) -> str:
    if "://" in path:
        raise FieldError("path", path, "an absolute directory that the template mounts; URIs are not supported yet")
    if not path.startswith("/"):
        raise FieldError("path", path, "an absolute directory, beginning with /")
    if {"", ".", ".."} & set(path.strip("/").split("/")) or path.startswith("//") or path.endswith("//"):
        raise FieldError("path", path, "a directory without empty, . and .. segments")
    return path


Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
MatchText = Annotated[str, Field(min_length=1, max_length=317)]


class Adaptive(SpecModel):
    """Bounds of an interval that follows the measured cost of a save and the measured rate of interruptions."""

    min_seconds: Seconds
    """Never save more often than this many seconds."""
    max_seconds: Seconds
    """Never let more than this many seconds pass without a save."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_seconds > self.max_seconds:
            raise FieldError("minSeconds", self.min_seconds, f"at most maxSeconds ({self.max_seconds})")
        return self


class Every(SpecModel):
    """When to save. Exactly one of seconds, steps and adaptive."""

    seconds: Seconds | None = None
    """Save when this many seconds have passed since the last save began."""
    steps: Steps | None = None
    """Save after each multiple of this many steps."""
    adaptive: Adaptive | None = None
    """Choose the interval from the measured cost of a save and the measured rate of interruptions."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = _given(self, "seconds", "steps", "adaptive")
        if len(given) != 1:
            raise FieldError("every", given, EXACTLY_ONE_INTERVAL)
        return self


class Keep(SpecModel):
    """Which checkpoints stay. A checkpoint stays if any of these keeps it; the one that an attempt may restore stays
    always.
    """

    latest: Annotated[int, Field(ge=2, le=1000)] = 3
    """How many of the newest to keep; at least 2, so that a damaged one has a predecessor."""
    best: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many of the best by metric to keep as well. Needs metric."""
    metric: Annotated[str, Field(min_length=1, max_length=128, pattern=METRIC_PATTERN)] | None = None
    """Name of the metric, as the training script commits it, by which best is judged. Needs best."""
    mode: Literal["min", "max"] | None = None
    """Whether the best is the smallest (min) or the largest (max) value of the metric; min if absent. Needs metric."""
    every_steps: Steps | None = None
    """Keep for ever the checkpoints whose step is a multiple of this."""

    @model_validator(mode="after")
    def _best_and_metric(self) -> Self:
        if self.best is not None and self.metric is None:
            raise FieldError("best", self.best, "only together with metric")
        if self.metric is not None and self.best is None:
            raise FieldError("metric", self.metric, "only together with best")
        if self.mode is not None and self.metric is None:
            raise FieldError("mode", self.mode, "only together with metric")
        return self


class Checkpoint(SpecModel):
    """Where checkpoints live, when they are made and which of them stay."""

    path: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_check_path)]
    """Absolute directory as the trainer container sees it, on a volume that the template mounts and all workers share.
    Cannot be changed."""
    run: Annotated[str, Field(min_length=1, max_length=63, pattern=RUN_PATTERN)] | None = None
    """Name of the folder under path that holds this training run; the job's UID if absent, which no other job shares.
    A new job with the same run resumes it on purpose. Cannot be changed."""
    take_over: bool = False
    """Continue the run even if its owner record names another job that is not known to be finished."""
    every: Every = Field(default_factory=lambda: Every(seconds=600))
    """When to save, apart from saves before a preemption and at the end. Changes only while the job is suspended."""
    keep: Keep = Field(default_factory=Keep)
    """Which checkpoints stay. Changes only while the job is suspended."""


class TaintMatch(SpecModel):
    """A taint of a node."""

    key: MatchText
    """Key of the taint."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint; any if absent."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; any if absent."""


class LabelMatch(SpecModel):
    """A label or an annotation of a node."""

    key: MatchText
    """Key to look for."""
    value: Annotated[str, Field(max_length=1024)] | None = None
    """Value to look for; any if absent."""


class ConditionMatch(SpecModel):
    """A condition of a node."""

    type: MatchText
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Reason of the condition; any if absent."""


class NoticeMatcher(SpecModel):
    """A sign on a node that it is about to go away. Exactly one of taint, label, annotation and condition."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
    """Name of this matcher, shown as the source of a notice in status, Events and metrics."""
    taint: TaintMatch | None = None
    """The node has a taint like this."""
    label: LabelMatch | None = None
    """The node has a label like this."""
    annotation: LabelMatch | None = None
    """The node has an annotation like this."""
    condition: ConditionMatch | None = None
    """The node has a condition like this."""
    deadline_seconds: Seconds | None = None
    """How many seconds after such a notice the node goes; preemption.defaultDeadlineSeconds if absent."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = _given(self, "taint", "label", "annotation", "condition")
        if len(given) != 1:
            raise FieldError(f"notices[name={self.name}]", given, EXACTLY_ONE_MATCHER)
        return self


class Preemption(SpecModel):
    """How notices that a node is about to go away are recognised and answered."""

    default_deadline_seconds: Seconds = 25
    """How many seconds a notice leaves if neither the platform nor its matcher says so."""
    notices: Annotated[tuple[NoticeMatcher, ...], Field(max_length=MAX_NOTICES)] = ()
    """Signs of a coming preemption in addition to those that are built in."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [n.name for n in self.notices]
        for name in names:
            if names.count(name) > 1:
                raise FieldError("notices", name, "each name once")
        return self


class Strategy(enum.StrEnum):
    """How the workers of a new attempt come to be."""

    IN_PLACE = "InPlace"  # pods that can live on do; only their trainer process starts anew
    RECREATE = "Recreate"  # every attempt gets new pods


class Recovery(SpecModel):
    """What happens when an attempt ends before training does. Preemptions and lost nodes are always recovered from and
    consume no budget.
    """

    strategy: Strategy = Strategy.IN_PLACE
    """InPlace: pods that can live on do, and only their trainer process starts anew. Recreate: every attempt gets new
    pods."""
    max_failures: Annotated[int, Field(ge=0, le=MAX_FAILURES)] = 10
    """How many failures within windowSeconds are recovered from; one more fails the job."""
    window_seconds: Seconds = 86400
    """Length of the sliding window in which failures count."""
    no_progress_limit: Annotated[int, Field(ge=1, le=1000)] = 3
    """After this many failed attempts in a row without a new checkpoint the job fails."""


class Hang(SpecModel):
    """When a trainer that shows no progress is taken for hung and restarted."""

    step_seconds: Seconds = 600
    """Longest time between two completed steps."""
    start_seconds: Seconds = 1800
    """Longest time from the start of a trainer to its first completed step; compilation and restore included."""


class TrainingJobSpec(SpecModel):
    """What to train, how many workers do it, and what happens when one of them goes away."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    """How many worker pods, each with one JAX process. Cannot be changed."""
    template: PodTemplate
    """Template of the worker pods. The container named trainer runs the training process. Changes only while the job
    is suspended."""
    suspend: bool = False
    """True stops training after a save and releases the pods; false again resumes it."""
    checkpoint: Checkpoint
    """Where checkpoints live, when they are made and which of them stay."""
    preemption: Preemption = Field(default_factory=Preemption)
    """How notices that a node is about to go away are recognised and answered."""
    recovery: Recovery = Field(default_factory=Recovery)
    """What happens when an attempt ends before training does."""
    hang: Hang = Field(default_factory=Hang)
    """When a trainer that shows no progress is taken for hung and restarted. Changes only while the job is suspended."""
    active_deadline_seconds: Seconds | None = None
    """The job fails when it is older than this, suspension not counted; no limit if absent."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """The job is deleted this long after it finished; never if absent. Checkpoints stay."""

    @model_validator(mode="after")
    def _path_is_mounted(self) -> Self:
        mounts = [m.mount_path.rstrip("/") for m in self.template.trainer.volume_mounts]
        path = self.checkpoint.path
        if not any(path == mount or path.startswith(f"{mount}/") for mount in mounts):
            raise FieldError("checkpoint.path", path, f"a directory under one of trainer's volumeMounts {mounts}")
        return self
