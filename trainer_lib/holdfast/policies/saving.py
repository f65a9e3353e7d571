"""When to save: frozen values, combined by ``any_of`` and ``all_of``.

A rule over steps alone gives every rank the same answer. A rule that looks at a clock or at measurements does not, so
process 0 evaluates it and the ranks agree on the step, which comes one or two steps after the rule was met.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, overload

from holdfast.policies.failures import PRIOR_FAILURES, PRIOR_SECONDS, UNOBSERVED
from holdfast.policies.failures import mean_seconds_between_failures as posterior_seconds
from holdfast.policies.keeping import Keep, KeepCombined, KeepRule, require_int, require_positive
from holdfast_contract import defaults
from holdfast_contract.sync import FailureHistory

DEFAULT_SECONDS: Final = float(defaults.SAVE_SECONDS)
"""Interval of saves when nothing says otherwise."""


@dataclass(frozen=True)
class Moment:
    """What a rule may look at. Durations in seconds; ``stall`` and ``write`` are those of recent saves, None at first."""

    step: int
    since_last_save_seconds: float
    stall_seconds: float | None = None
    write_seconds: float | None = None
    recent: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Latest values of the metrics that a rule watches, oldest first, of completed steps."""
    history: FailureHistory = UNOBSERVED
    """Failures so far and the seconds that training ran in, this attempt included."""


class SavePolicy(Protocol):
    """A rule for saves."""

    @property
    def exact(self) -> bool:
        """Whether ``due`` is a function of the step alone."""

    def due(self, moment: Moment) -> bool:
        """Whether the state after ``moment.step`` is to be saved."""


@dataclass(frozen=True)
class EverySteps:
    """Every multiple of ``steps``, counted from the start of the run."""

    steps: int
    exact = True

    def __post_init__(self) -> None:
        require_int("every_steps", self.steps, minimum=1)

    def due(self, moment: Moment) -> bool:
        """At multiples."""
        return moment.step % self.steps == 0


@dataclass(frozen=True)
class EverySeconds:
    """When ``seconds`` have passed since the last save began."""

    seconds: float
    exact = False

    def __post_init__(self) -> None:
        require_positive("every_seconds", self.seconds)

    def due(self, moment: Moment) -> bool:
        """After the interval."""
        return moment.since_last_save_seconds >= self.seconds


@dataclass(frozen=True)
class Adaptive:
    """At the interval that loses least time in all, from the measured cost of a save and the expected failures.

    Daly's higher-order optimum (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22, 2006), which refines Young's first-order sqrt(2 w M) (CACM 17, 1974). With w the time that a save
    takes from the loop and M the mean time between failures, both in seconds:

        tau = sqrt(2 w M) * (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w     for w < 2 M,     else M

    A save is worth nothing until it is committed, so the interval is never below the time that one takes to be written;
    then it is clamped to [min_seconds, max_seconds]. Before the first save nothing is known and the minimum holds.

    M is what was expected, ``mean_seconds_between_failures`` with the weight of ``prior_failures`` failures, corrected by
    what was observed: see ``holdfast.policies.failures``. The operator observes over all attempts of a job. Without one nobody
    knows why earlier attempts ended, and only the time that this one has run without a failure counts.
    """

    min_seconds: float
    max_seconds: float
    mean_seconds_between_failures: float = PRIOR_SECONDS
    prior_failures: float = PRIOR_FAILURES
    exact = False

    def __post_init__(self) -> None:
        for name in ("min_seconds", "max_seconds", "mean_seconds_between_failures", "prior_failures"):
            require_positive(f"adaptive.{name}", getattr(self, name))
        if self.max_seconds < self.min_seconds:
            allowed = f"min_seconds ({self.min_seconds:g}) or more"
            raise ValueError(f"adaptive.max_seconds: found {self.max_seconds:g}, allowed: {allowed}")

    def interval_seconds(
        self,
        stall_seconds: float | None,
        write_seconds: float | None,
        history: FailureHistory = UNOBSERVED,
    ) -> float:
        """The interval for a save that holds the loop for the one and reaches storage after the other."""
        if stall_seconds is None:
            return self.min_seconds
        mean = posterior_seconds(
            history, prior_seconds=self.mean_seconds_between_failures, prior_failures=self.prior_failures
        )
        best = daly_interval_seconds(stall_seconds, mean)
        return min(max(best, write_seconds or 0.0, self.min_seconds), self.max_seconds)

    def due(self, moment: Moment) -> bool:
        """After the interval."""
        interval = self.interval_seconds(moment.stall_seconds, moment.write_seconds, moment.history)
        return moment.since_last_save_seconds >= interval


@dataclass(frozen=True)
class AnyOf:
    """When one of the rules is met."""

    policies: tuple[SavePolicy, ...]

    @property
    def exact(self) -> bool:
        """Whether all rules are."""
        return all(p.exact for p in self.policies)

    def due(self, moment: Moment) -> bool:
        """When one is."""
        return any(p.due(moment) for p in self.policies)


@dataclass(frozen=True)
class AllOf:
    """When all of the rules are met."""

    policies: tuple[SavePolicy, ...]

    @property
    def exact(self) -> bool:
        """Whether all rules are."""
        return all(p.exact for p in self.policies)

    def due(self, moment: Moment) -> bool:
        """When all are."""
        return all(p.due(moment) for p in self.policies)


@dataclass(frozen=True)
class Never:
    """No save but the final one and those that are asked for."""

    exact = True

    def due(self, moment: Moment) -> bool:  # noqa: ARG002  the same answer at every moment
        """Never."""
        return False


def every_steps(steps: int) -> EverySteps:
    """Save at every multiple of ``steps``."""
    return EverySteps(steps)


def every_seconds(seconds: float) -> EverySeconds:
    """Save when ``seconds`` have passed since the last save."""
    return EverySeconds(seconds)


def adaptive(
    *,
    min_seconds: float,
    max_seconds: float,
    mean_seconds_between_failures: float = PRIOR_SECONDS,
    prior_failures: float = PRIOR_FAILURES,
) -> Adaptive:
    """Save at the interval that the measured cost of a save and the rate of failures make best; see Adaptive."""
    return Adaptive(min_seconds, max_seconds, mean_seconds_between_failures, prior_failures)


def only_at_end() -> Never:
    """Save by no rule: at the end, before a preemption and when the program asks for it."""
    return Never()


@overload
def any_of(*policies: KeepRule) -> KeepCombined: ...
@overload
def any_of(*policies: SavePolicy) -> AnyOf: ...
def any_of(*policies: Any) -> Any:
    """Save when one of the rules is met (rules over steps among them stay exact); or keep what one of them keeps."""
    if _all_keep("any_of", policies):
        return KeepCombined("anyOf", policies)
    return AnyOf(policies)


@overload
def all_of(*policies: KeepRule) -> KeepCombined: ...
@overload
def all_of(*policies: SavePolicy) -> AllOf: ...
def all_of(*policies: Any) -> Any:
    """Save when all of the rules are met; or keep only what all of them keep."""
    if _all_keep("all_of", policies):
        return KeepCombined("allOf", policies)
    return AllOf(policies)


def split(policy: SavePolicy) -> tuple[SavePolicy, SavePolicy]:
    """The part that every rank decides alone and the part that needs an agreement; a save is due when either is."""
    if isinstance(policy, AnyOf):
        parts = [split(p) for p in policy.policies]
        return AnyOf(tuple(exact for exact, _ in parts)), AnyOf(tuple(agreed for _, agreed in parts))
    return (policy, Never()) if policy.exact else (Never(), policy)


def daly_interval_seconds(stall_seconds: float, mean_seconds_between_failures: float) -> float:
    """Daly's interval; see Adaptive. At least the stall itself, so that a free save does not mean saving always."""
    w, m = stall_seconds, mean_seconds_between_failures
    if w >= 2 * m:
        return m
    ratio = w / (2 * m)
    return max(w, math.sqrt(2 * w * m) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - w)


def _all_keep(name: str, policies: tuple[Any, ...]) -> bool:
    """Whether these are rules of what to keep; raises if they are of both kinds, or none is there."""
    if not policies:
        raise ValueError(f"{name}: found no rule, allowed: one or more")
    kept = [isinstance(policy, Keep | KeepCombined) for policy in policies]
    if any(kept) and not all(kept):
        raise TypeError(f"{name}: found rules of when to save and of what to keep, allowed: rules of one kind")
    return all(kept)
