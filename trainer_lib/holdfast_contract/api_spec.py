"""The spec of a TrainingJob, which the user writes, as pydantic models.

The CRD is generated from these models, so ``kubectl explain`` prints each attribute's docstring. The validators here
repeat the CRD's CEL rules: the API server refuses a bad object on admission, and the operator refuses it again, because
an older CRD may have admitted the object.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast_contract.api_base import MAX_SECONDS, FieldError, Seconds, SpecModel, given
from holdfast_contract.api_checkpoint import CheckpointSpec
from holdfast_contract.api_template import DNS_LABEL_PATTERN, PodTemplate

MAX_REPLICAS: Final = 4096
MAX_FAILURES: Final = 100
MAX_NOTICES: Final = 32
_MATCHERS: Final = ("taint", "label", "annotation", "condition")
EXACTLY_ONE_MATCHER: Final = f"exactly one of {', '.join(_MATCHERS)}"


MatchText = Annotated[str, Field(min_length=1, max_length=317)]


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
    """A pattern that recognises a preemption notice on a node. Exactly one of taint, label, annotation and condition is
    set.
    """

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
    """Seconds from such a notice until the node goes away; preemption.defaultDeadlineSeconds if absent."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        found = [name for name in given(self) if name in _MATCHERS]
        if len(found) != 1:
            raise FieldError(f"notices[name={self.name}]", found, EXACTLY_ONE_MATCHER)
        return self


class PreemptionSpec(SpecModel):
    """How preemption notices are recognised and answered."""

    default_deadline_seconds: Seconds = 25
    """Seconds from a notice until the node goes away, if neither the platform nor the matcher says so."""
    notices: Annotated[tuple[NoticeMatcher, ...], Field(max_length=MAX_NOTICES)] = ()
    """Patterns of preemption notices, in addition to the built-in ones."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [n.name for n in self.notices]
        for name in names:
            if names.count(name) > 1:
                raise FieldError("notices", name, "each name once")
        return self


class Strategy(enum.StrEnum):
    """How a new attempt obtains its workers."""

    IN_PLACE = "InPlace"  # pods that are still usable stay; only their trainer process restarts
    RECREATE = "Recreate"  # every attempt gets new pods


class RecoverySpec(SpecModel):
    """What happens when an attempt ends before training does. Recovery from preemptions and lost nodes is unlimited and
    consumes no budget.
    """

    strategy: Strategy = Strategy.IN_PLACE
    """InPlace: pods that are still usable stay, and only their trainer process restarts. Recreate: every attempt gets
    new pods."""
    max_failures: Annotated[int, Field(ge=0, le=MAX_FAILURES)] = 10
    """How many failures within windowSeconds the job recovers from; one more fails the job."""
    window_seconds: Seconds = 86400
    """Length of the sliding window in which failures count."""
    no_progress_limit: Annotated[int, Field(ge=1, le=1000)] = 3
    """The job fails after this many failed attempts in a row without a new checkpoint."""


class HangSpec(SpecModel):
    """When a trainer that makes no progress counts as hung and is restarted."""

    step_seconds: Seconds = 600
    """Longest time between two completed steps."""
    start_seconds: Seconds = 1800
    """Longest time from the start of a trainer to its first completed step; compilation and restore included."""


class TrainingJobSpec(SpecModel):
    """What to train, how many workers do it, and what happens when one of them goes away."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    """Number of worker pods, each with one JAX process. Cannot be changed."""
    template: PodTemplate
    """Template of the worker pods. The container named trainer runs the training process. Can be changed only while the
    job is suspended."""
    suspend: bool = False
    """True stops training after a save and deletes the pods; setting it back to false resumes training."""
    checkpoint: CheckpointSpec
    """Where checkpoints live, when they are made and which of them stay."""
    preemption: PreemptionSpec = Field(default_factory=PreemptionSpec)
    """How preemption notices are recognised and answered."""
    recovery: RecoverySpec = Field(default_factory=RecoverySpec)
    """What happens when an attempt ends before training does."""
    hang: HangSpec = Field(default_factory=HangSpec)
    """When a trainer that makes no progress counts as hung and is restarted. Can be changed only while the job is
    suspended."""
    active_deadline_seconds: Seconds | None = None
    """Seconds after which the job fails, not counting suspension; no limit if absent."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None
    """Seconds from the end of the job to its deletion; never deleted if absent. Checkpoints stay."""

    @model_validator(mode="after")
    def _path_is_mounted(self) -> Self:
        mounts = [m.mount_path.rstrip("/") for m in self.template.trainer.volume_mounts]
        path = self.checkpoint.path
        if not any(path == mount or path.startswith(f"{mount}/") for mount in mounts):
            raise FieldError("checkpoint.path", path, f"a directory under one of trainer's volumeMounts {mounts}")
        return self
