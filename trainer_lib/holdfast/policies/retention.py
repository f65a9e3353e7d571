"""Which checkpoints to keep: frozen policies, combined with ``|`` (kept by any) and ``&`` (kept by all).

Pure. What is protected whatever a policy says (the pin, the newest two that are whole) is the caller's to add.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from holdfast_contract.manifest import CheckpointRef, is_healthy

T = TypeVar("T")


@dataclass(frozen=True)
class Kept:
    """What a policy may look at. ``elapsed_seconds``: see Manifest."""

    ref: CheckpointRef
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False
    elapsed_seconds: float | None = None


class Retention(ABC):
    """A rule that says which of some checkpoints to keep."""

    @abstractmethod
    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """Those to keep, out of ``checkpoints`` in any order."""

    def __or__(self, other: Retention) -> Retention:
        return AnyOf((self, other))

    def __and__(self, other: Retention) -> Retention:
        return AllOf((self, other))


@dataclass(frozen=True)
class KeepAll(Retention):
    """Everything."""

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """All."""
        return frozenset(c.ref for c in checkpoints)


@dataclass(frozen=True)
class Latest(Retention):
    """The newest ``count`` by (attempt, step)."""

    count: int

    def __post_init__(self) -> None:
        _at_least("latest", self.count, 1)

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The newest ones."""
        return frozenset(sorted((c.ref for c in checkpoints), reverse=True)[: self.count])


@dataclass(frozen=True)
class Best(Retention):
    """The ``count`` best by a metric. Missing, NaN and infinite values are worst; of equals the newer is better.

    A checkpoint that the program called unhealthy is not among them.
    """

    count: int
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        _at_least("best", self.count, 1)
        if self.mode not in {"min", "max"}:
            raise ValueError(f"mode: found {self.mode!r}, allowed: 'min' | 'max'")

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The best ones; fewer if too few have a finite value."""
        rated = [(self._badness(c), c.ref) for c in checkpoints]
        finite = [(badness, ref) for badness, ref in rated if math.isfinite(badness)]
        finite.sort(key=lambda pair: (-pair[0], pair[1]), reverse=True)
        return frozenset(ref for _, ref in finite[: self.count])

    def _badness(self, checkpoint: Kept) -> float:
        value = checkpoint.metrics.get(self.metric, math.nan) if is_healthy(checkpoint.metrics) else math.nan
        return value if self.mode == "min" else -value


@dataclass(frozen=True)
class EverySteps(Retention):
    """Those whose step is a multiple of ``steps``."""

    steps: int

    def __post_init__(self) -> None:
        _at_least("everySteps", self.steps, 1)

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The multiples."""
        return frozenset(c.ref for c in checkpoints if c.ref.step % self.steps == 0)


@dataclass(frozen=True)
class EverySeconds(Retention):
    """One for each interval of ``seconds`` of training: the first one in it of the newest attempt that came there.

    What is kept of an interval changes only when a later attempt trains it again. Those whose manifest does not say how
    long training had gone on (of older versions) are not kept by this rule.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"everySeconds: found {self.seconds!r}, allowed: a finite number above 0")

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The first of each interval."""
        chosen: dict[int, CheckpointRef] = {}
        for checkpoint in sorted(checkpoints, key=lambda c: (-c.ref.attempt, c.ref.step)):
            elapsed = checkpoint.elapsed_seconds
            if elapsed is not None and math.isfinite(elapsed):
                chosen.setdefault(math.floor(elapsed / self.seconds), checkpoint.ref)
        return frozenset(chosen.values())


@dataclass(frozen=True)
class Steps(Retention):
    """Those of certain steps, in every attempt."""

    steps: frozenset[int]

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The ones listed."""
        return frozenset(c.ref for c in checkpoints if c.ref.step in self.steps)


@dataclass(frozen=True)
class AnyOf(Retention):
    """Kept by at least one of ``rules``."""

    rules: tuple[Retention, ...]

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The union."""
        return frozenset[CheckpointRef]().union(*(rule.keeps(checkpoints) for rule in self.rules))


@dataclass(frozen=True)
class AllOf(Retention):
    """Kept by every one of ``rules``."""

    rules: tuple[Retention, ...]

    def keeps(self, checkpoints: Sequence[Kept]) -> frozenset[CheckpointRef]:
        """The intersection; everything if there are no rules."""
        kept = frozenset(c.ref for c in checkpoints)
        return kept.intersection(*(rule.keeps(checkpoints) for rule in self.rules))


def superfluous(
    checkpoints: Sequence[Kept], rule: Retention, *, protected: Collection[CheckpointRef]
) -> tuple[CheckpointRef, ...]:
    """What may be deleted, oldest first: kept by no rule, not pinned by the user, not protected."""
    keep = rule.keeps(checkpoints) | frozenset(protected) | {c.ref for c in checkpoints if c.pinned}
    return tuple(sorted(c.ref for c in checkpoints if c.ref not in keep))


def from_spec(keep: Mapping[str, object]) -> Retention:
    """The rule that a job's ``spec.checkpoint.keep``, or ``Keep.to_spec``, means: kept by any of its fields.

    ``anyOf`` and ``allOf`` hold lists of such specifications. Raises ValueError or TypeError naming the field.
    """
    allowed = {"latest", "best", "metric", "mode", "everySteps", "everySeconds", "steps", "anyOf", "allOf"}
    unknown = sorted(set(keep) - allowed)
    if unknown:
        raise ValueError(f"keep: found {unknown}, allowed: {sorted(allowed)}")
    rules: list[Retention] = []
    if keep.get("latest") is not None:
        rules.append(Latest(_count(keep, "latest")))
    if keep.get("best"):
        metric, mode = str(keep.get("metric") or "loss"), str(keep.get("mode") or "min")
        rules.append(Best(_count(keep, "best"), metric, "max" if mode == "max" else _minimum(mode)))
    if keep.get("everySteps"):
        rules.append(EverySteps(_count(keep, "everySteps")))
    if keep.get("everySeconds"):
        rules.append(EverySeconds(_number(keep, "everySeconds")))
    if keep.get("steps"):
        rules.append(Steps(frozenset(_list(keep, "steps", int))))
    for name, combined in (("anyOf", AnyOf), ("allOf", AllOf)):
        if keep.get(name):
            rules.append(combined(tuple(from_spec(inner) for inner in _list(keep, name, dict))))
    return AnyOf(tuple(rules)) if rules else KeepAll()


def _minimum(mode: str) -> Literal["min"]:
    if mode != "min":
        raise ValueError(f"mode: found {mode!r}, allowed: 'min' | 'max'")
    return "min"


def _count(keep: Mapping[str, object], name: str) -> int:
    value = keep[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: found {value!r}, allowed: a whole number")
    return value


def _number(keep: Mapping[str, object], name: str) -> float:
    value = keep[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: found {value!r}, allowed: a number")
    return float(value)


def _list(keep: Mapping[str, object], name: str, kind: type[T]) -> list[T]:
    value = keep[name]
    if not isinstance(value, list | tuple) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in value):
        raise TypeError(f"{name}: found {value!r}, allowed: a list of {kind.__name__}")
    return list(value)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: found {value!r}, allowed: {least} or more")
