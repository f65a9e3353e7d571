"""The models of ``spec.checkpoint``: when to save, which checkpoints to keep and which count as healthy.

A structural schema cannot be recursive, so rules combine to a fixed depth that is enough for every combination: any of
all of some rules for saves; any of all of some rules for what to keep, each of which is met by any of its fields.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast_contract import defaults
from holdfast_contract.api_base import FieldError, Seconds, SpecModel, Steps, given

MAX_RULES: Final = 8
"""The longest list of combined rules."""
MAX_LISTED_STEPS: Final = 64
MAX_METRICS: Final = 16
RUN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?$"
METRIC_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.:/-]*$"

SAVE_RULES: Final = ("seconds", "steps", "adaptive", "atSteps", "whenUnstable")
KEEP_RULES: Final = ("latest", "best", "everySteps", "everySeconds", "steps")
EXACTLY_ONE_SAVE: Final = f"exactly one of {', '.join(SAVE_RULES)}"
EXACTLY_ONE_TERM: Final = f"{EXACTLY_ONE_SAVE}, allOf"
EXACTLY_ONE_INTERVAL: Final = f"{EXACTLY_ONE_TERM}, anyOf, onlyAtEnd"
SOME_KEEP: Final = f"one or more of {', '.join(KEEP_RULES)}"
RISING: Final = "steps in rising order, each once"


def _check_rising(steps: tuple[int, ...]) -> tuple[int, ...]:
    if list(steps) != sorted(set(steps)):
        raise FieldError("steps", list(steps), RISING)
    return steps


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise FieldError("finite", name, "each metric once")
    return names


def _check_path(path: str) -> str:
    if "://" in path:
        raise FieldError("path", path, "an absolute directory that the template mounts; URIs are not supported yet")
    if not path.startswith("/"):
        raise FieldError("path", path, "an absolute directory, beginning with /")
    if {"", ".", ".."} & set(path.strip("/").split("/")) or path.startswith("//") or path.endswith("//"):
        raise FieldError("path", path, "a directory without empty, . and .. segments")
    return path


MetricName = Annotated[str, Field(min_length=1, max_length=128, pattern=METRIC_PATTERN)]
ListedSteps = Annotated[
    tuple[Steps, ...], Field(min_length=1, max_length=MAX_LISTED_STEPS), AfterValidator(_check_rising)
]
Combined = Field(min_length=1, max_length=MAX_RULES)


class AdaptiveSpec(SpecModel):
    """The interval that loses the least time, given the measured cost of a save and the rate of failures. The rate
    starts as an expectation, which the failures that the operator observes in this job correct.
    """

    min_seconds: Seconds
    """Shortest interval between two saves, in seconds."""
    max_seconds: Seconds
    """Longest interval between two saves, in seconds."""
    prior_mean_seconds_between_failures: Seconds = defaults.SECONDS_BETWEEN_FAILURES
    """Expected seconds of training between two failures, before any failure is observed."""
    prior_failures: Annotated[int, Field(ge=1, le=1000)] = defaults.PRIOR_FAILURES
    """Weight of that expectation, as a number of observed failures."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_seconds > self.max_seconds:
            raise FieldError("minSeconds", self.min_seconds, f"at most maxSeconds ({self.max_seconds})")
        return self


class WhenUnstableSpec(SpecModel):
    """Saves at an interval in time: often while a metric is unstable and rarely while it is calm."""

    metric: MetricName = "loss"
    """Name of the metric, as the training script commits it."""
    min_seconds: Seconds
    """Interval in seconds while the metric is unstable: not finite, or further away than tolerance."""
    base_seconds: Seconds
    """Interval in seconds while the metric is neither unstable nor calm, or has fewer values than window."""
    max_seconds: Seconds
    """Interval in seconds while the metric is calm: no value further away than half of tolerance."""
    window: Annotated[int, Field(ge=defaults.SHORTEST_WINDOW, le=defaults.LONGEST_WINDOW)] = defaults.UNSTABLE_WINDOW
    """How many of the latest values are compared; the newest quarter of them is judged by the others."""
    tolerance: Annotated[float, Field(ge=1, le=1000)] = defaults.UNSTABLE_TOLERANCE
    """Distance from the median beyond which a value is unstable, in units of the usual spread."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        bounds = (self.min_seconds, self.base_seconds, self.max_seconds)
        if list(bounds) != sorted(bounds):
            raise FieldError("minSeconds, baseSeconds, maxSeconds", bounds, "in rising order")
        return self


class SaveRuleSpec(SpecModel):
    """One rule for saves. Exactly one of its fields is set."""

    seconds: Seconds | None = None
    """Save when this many seconds have passed since the last save began."""
    steps: Steps | None = None
    """Save after each multiple of this many steps."""
    adaptive: AdaptiveSpec | None = None
    """Save at the interval that loses the least time, given the measured cost of a save and the rate of failures."""
    at_steps: ListedSteps | None = None
    """Save after each of these steps, listed in rising order."""
    when_unstable: WhenUnstableSpec | None = None
    """Save often while a metric is unstable and rarely while it is calm."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        found = given(self)
        if len(found) != 1:
            raise FieldError("every", found, self._allowed())
        return self

    @classmethod
    def _allowed(cls) -> str:
        return EXACTLY_ONE_SAVE


class SaveTermSpec(SaveRuleSpec):
    """One rule for saves, or several that must all be met. Exactly one of its fields is set."""

    all_of: Annotated[tuple[SaveRuleSpec, ...], Combined] | None = None
    """Save when all of these rules are met."""

    @classmethod
    def _allowed(cls) -> str:
        return EXACTLY_ONE_TERM


class EverySpec(SaveTermSpec):
    """When to save. Exactly one of its fields is set."""

    any_of: Annotated[tuple[SaveTermSpec, ...], Combined] | None = None
    """Save when one of these rules is met."""
    only_at_end: Literal[True] | None = None
    """Follow no rule: save only after the last step, before a preemption and when the training script asks for it."""

    @classmethod
    def _allowed(cls) -> str:
        return EXACTLY_ONE_INTERVAL


class KeepFields(SpecModel):
    """Which checkpoints to keep. A checkpoint is kept if any of the fields keeps it."""

    latest: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many of the newest to keep."""
    best: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many of the best by metric to keep. Requires metric. A value that is not finite is worse than any other."""
    metric: MetricName | None = None
    """Name of the metric, as the training script commits it, by which best is judged. Requires best."""
    mode: Literal["min", "max"] | None = None
    """Whether the best value of metric is the smallest (min) or the largest (max); min if absent. Requires metric."""
    every_steps: Steps | None = None
    """Keep for ever the checkpoints whose step is a multiple of this."""
    every_seconds: Seconds | None = None
    """Keep for ever one checkpoint for each interval of this many seconds of training; downtime does not count."""
    steps: ListedSteps | None = None
    """Keep for ever the checkpoints of these steps, listed in rising order."""

    @model_validator(mode="after")
    def _best_and_metric(self) -> Self:
        for name, other in (("best", "metric"), ("metric", "best"), ("mode", "metric")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise FieldError(name, getattr(self, name), f"only together with {other}")
        return self


class KeepRuleSpec(KeepFields):
    """Which checkpoints to keep. A checkpoint is kept if any of the fields keeps it; at least one field is set."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not given(self):
            raise FieldError("keep", [], self._allowed())
        return self

    @classmethod
    def _allowed(cls) -> str:
        return SOME_KEEP


class KeepTermSpec(KeepRuleSpec):
    """Which checkpoints to keep. A checkpoint is kept if any of the fields keeps it; at least one field is set."""

    all_of: Annotated[tuple[KeepRuleSpec, ...], Combined] | None = None
    """Keep what all of these rules keep."""

    @classmethod
    def _allowed(cls) -> str:
        return f"{SOME_KEEP}, allOf"


class KeepSpec(KeepFields):
    """Which checkpoints to keep. A checkpoint is kept if any of the fields keeps it. Always kept are the checkpoint
    that an attempt may restore, those that the script committed with keep=True, and the newest two that are intact.
    """

    latest: Annotated[int, Field(ge=2, le=1000)] | None = None
    """How many of the newest to keep, 3 if absent; at least 2, so that a damaged one has a predecessor."""
    any_of: Annotated[tuple[KeepTermSpec, ...], Combined] | None = None
    """Also keep what any of these rules keeps."""
    all_of: Annotated[tuple[KeepRuleSpec, ...], Combined] | None = None
    """Also keep what all of these rules keep."""
    all: Literal[True] | None = None
    """Delete nothing. Not together with any other field."""

    @model_validator(mode="after")
    def _all_or_some(self) -> Self:
        found = given(self)
        if self.all is not None and len(found) > 1:
            raise FieldError("all", found, "all alone, for it deletes nothing")
        return self


class HealthySpec(SpecModel):
    """What makes a checkpoint healthy. An unhealthy checkpoint is never among the best."""

    finite: Annotated[
        tuple[MetricName, ...], Field(min_length=1, max_length=MAX_METRICS), AfterValidator(_check_unique)
    ]
    """Names of metrics that the training script must have committed with finite values."""


class CheckpointSpec(SpecModel):
    """Where checkpoints are stored, when they are made and which are kept."""

    path: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_check_path)]
    """Absolute directory as the trainer container sees it, on a volume that the template mounts and all workers share.
    Cannot be changed."""
    run: Annotated[str, Field(min_length=1, max_length=63, pattern=RUN_PATTERN)] | None = None
    """Name of the folder under path that holds this training run; the job's UID if absent, which no other job shares.
    A new job that names the same run resumes it. Cannot be changed."""
    take_over: bool = False
    """Continue the run even if its owner record names another job that is not known to be finished."""
    every: EverySpec = Field(default_factory=lambda: EverySpec(seconds=defaults.SAVE_SECONDS))
    """When to save, in addition to saves before a preemption and at the end; every 600 seconds if absent. What the
    training script passes to its session takes precedence. Can be changed only while the job is suspended."""
    keep: KeepSpec = Field(default_factory=KeepSpec)
    """Which checkpoints to keep. What the training script passes to its session takes precedence. Can be changed only
    while the job is suspended."""
    healthy: HealthySpec | None = None
    """What makes a checkpoint healthy; all are if absent. What the training script passes to its session takes
    precedence. Can be changed only while the job is suspended."""
