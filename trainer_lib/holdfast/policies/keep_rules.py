"""What to keep: one frozen value per rule, which chooses among the checkpoints on storage.

To add a keep rule, write its class here, add it to ``KeepRule`` and give ``keep`` an argument for it. If a job may
name the rule too, read it in ``holdfast.policies.job_rules``. ``any_of`` and ``all_of`` in
``holdfast.policies.combinations`` combine rules.

Some checkpoints stay whatever the rule says: those saved with ``keep=True``, the one that the run was restored from,
the newest two valid ones, and as many before each attempt that began anew. ``superfluous`` adds the first; its caller,
the store, adds the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.policies.field_checks import require_int, require_positive
from holdfast_contract import defaults
from holdfast_contract.manifest import CheckpointRef, is_healthy

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class StoredCheckpoint:
    """What a keep rule may look at: a checkpoint on storage, as its manifest describes it."""

    ref: CheckpointRef
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False
    """Whether the program saved it with ``keep=True``."""
    elapsed_seconds: float | None = None
    """How long the run had trained before this save, over all attempts; None if the manifest does not say."""


@dataclass(frozen=True)
class KeepEverything:
    """Keep every checkpoint."""

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """All of ``checkpoints``."""
        return frozenset(c.ref for c in checkpoints)


@dataclass(frozen=True)
class KeepLatest:
    """Keep the newest ``count`` checkpoints, ordered by attempt, then step."""

    count: int

    def __post_init__(self) -> None:
        require_int("keep.latest", self.count, minimum=1)

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """The newest of ``checkpoints``."""
        return frozenset(sorted((c.ref for c in checkpoints), reverse=True)[: self.count])


@dataclass(frozen=True)
class KeepBest:
    """Keep the ``count`` best checkpoints by a metric. Of equal ones the newer is better.

    A checkpoint whose value is missing, NaN or infinite is never among the best, and neither is an unhealthy one.
    """

    count: int
    metric: str = "loss"
    mode: Mode = "min"

    def __post_init__(self) -> None:
        require_int("keep.best", self.count, minimum=1)
        _require_metric(self.metric, self.mode)

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """The best of ``checkpoints``; fewer than ``count`` if fewer have a finite value."""
        rated = [(self._badness(c), c.ref) for c in checkpoints]
        finite = [(badness, ref) for badness, ref in rated if math.isfinite(badness)]
        finite.sort(key=lambda pair: (-pair[0], pair[1]), reverse=True)
        return frozenset(ref for _, ref in finite[: self.count])

    def _badness(self, checkpoint: StoredCheckpoint) -> float:
        value = checkpoint.metrics.get(self.metric, math.nan) if is_healthy(checkpoint.metrics) else math.nan
        return value if self.mode == "min" else -value


@dataclass(frozen=True)
class KeepEverySteps:
    """Keep the checkpoints whose step is a multiple of ``steps``."""

    steps: int

    def __post_init__(self) -> None:
        require_int("keep.every_steps", self.steps, minimum=1)

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """The multiples among ``checkpoints``."""
        return frozenset(c.ref for c in checkpoints if c.ref.step % self.steps == 0)


@dataclass(frozen=True)
class KeepEverySeconds:
    """Keep one checkpoint for each interval of ``seconds`` of training.

    Training time adds up over restarts; the time between attempts does not count. In each interval the newest attempt
    that saved there counts, and its first checkpoint stays. Therefore the choice changes only when a later attempt
    trains the interval again. A checkpoint whose manifest does not say how long the run had trained is not kept.
    """

    seconds: float

    def __post_init__(self) -> None:
        require_positive("keep.every_seconds", self.seconds)

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """One of ``checkpoints`` for each interval that has any."""
        chosen: dict[int, CheckpointRef] = {}
        for checkpoint in sorted(checkpoints, key=lambda c: (-c.ref.attempt, c.ref.step)):
            elapsed = checkpoint.elapsed_seconds
            if elapsed is not None and math.isfinite(elapsed):
                chosen.setdefault(math.floor(elapsed / self.seconds), checkpoint.ref)
        return frozenset(chosen.values())


@dataclass(frozen=True)
class KeepSteps:
    """Keep the checkpoints of these steps, of every attempt."""

    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        for step in self.steps:
            require_int("keep.steps", step, minimum=0)

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """Those of ``checkpoints`` that have one of the steps."""
        steps = frozenset(self.steps)
        return frozenset(c.ref for c in checkpoints if c.ref.step in steps)


@dataclass(frozen=True)
class KeptByAny:
    """Keep what at least one of ``rules`` keeps. Without rules that is nothing."""

    rules: tuple[KeepRule, ...]

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """The union of what the rules keep of ``checkpoints``."""
        return frozenset[CheckpointRef]().union(*(rule.keeps(checkpoints) for rule in self.rules))


@dataclass(frozen=True)
class KeptByAll:
    """Keep only what each of ``rules`` keeps. Without rules that is everything."""

    rules: tuple[KeepRule, ...]

    def keeps(self, checkpoints: Sequence[StoredCheckpoint]) -> frozenset[CheckpointRef]:
        """The intersection of what the rules keep of ``checkpoints``."""
        everything = frozenset(c.ref for c in checkpoints)
        return everything.intersection(*(rule.keeps(checkpoints) for rule in self.rules))


KeepRule = (
    KeepEverything | KeepLatest | KeepBest | KeepEverySteps | KeepEverySeconds | KeepSteps | KeptByAny | KeptByAll
)


def keep(  # noqa: PLR0913  one name for every rule, all optional
    *,
    latest: int | None = defaults.KEEP_LATEST,
    best: int = 0,
    metric: str = "loss",
    mode: Mode = "min",
    every_steps: int | None = None,
    every_seconds: float | None = None,
    steps: tuple[int, ...] = (),
) -> KeptByAny:
    """Keep each checkpoint that at least one of the rules given here keeps.

    Args:
        latest: keep so many of the newest checkpoints; None: keep what the other rules keep, and nothing else.
        best: keep so many of the best checkpoints by ``metric``; see ``KeepBest``. 0: do not look at metrics.
        metric: the name of a metric given to ``commit``.
        mode: whether the smallest ("min") or the largest ("max") value is best.
        every_steps: keep the checkpoints whose step is a multiple of this.
        every_seconds: keep one checkpoint for so many seconds of training; see ``KeepEverySeconds``.
        steps: keep the checkpoints of these steps.

    Raises:
        ValueError: an argument has a wrong value, or no rule is given.
    """
    rules: list[KeepRule] = []
    if latest is not None:
        rules.append(KeepLatest(latest))
    require_int("keep.best", best, minimum=0)
    _require_metric(metric, mode)
    if best:
        rules.append(KeepBest(best, metric, mode))
    if every_steps is not None:
        rules.append(KeepEverySteps(every_steps))
    if every_seconds is not None:
        rules.append(KeepEverySeconds(every_seconds))
    if chosen := tuple(steps):
        rules.append(KeepSteps(chosen))
    if not rules:
        raise ValueError("keep: found no rule, allowed: one or more; keep_all() deletes nothing")
    return KeptByAny(tuple(rules))


def keep_all() -> KeepEverything:
    """Delete nothing."""
    return KeepEverything()


def require_keep_rule(name: str, value: object) -> None:
    """Require one of the values of this module. Raises TypeError that names the argument ``name``."""
    if not isinstance(value, KeepRule):
        raise TypeError(f"{name}: found {value!r:.100}, allowed: what keep(), keep_all(), any_of() or all_of() return")


def superfluous(
    checkpoints: Sequence[StoredCheckpoint], rule: KeepRule, *, protected: Collection[CheckpointRef]
) -> tuple[CheckpointRef, ...]:
    """The checkpoints that may be deleted, oldest first.

    Args:
        checkpoints: all checkpoints of the run, in any order.
        rule: what to keep.
        protected: checkpoints that stay although neither ``rule`` nor the program keeps them.
    """
    staying = rule.keeps(checkpoints) | frozenset(protected) | {c.ref for c in checkpoints if c.pinned}
    return tuple(sorted(c.ref for c in checkpoints if c.ref not in staying))


def _require_metric(metric: object, mode: object) -> None:
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"keep.metric: found {metric!r}, allowed: the name of a metric given to commit")
    if mode not in {"min", "max"}:
        raise ValueError(f"keep.mode: found {mode!r}, allowed: 'min' or 'max'")
