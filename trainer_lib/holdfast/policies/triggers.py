"""Further rules for saves: at named steps, and by how steady a metric is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.policies.keeping import require_int, require_positive
from holdfast.policies.metrics import REMEMBERED_VALUES
from holdfast.policies.saving import Moment
from holdfast_contract import defaults

_DEVIATION: Final = 1.4826
"""Times the median absolute deviation: the standard deviation, if values are normally distributed."""
_RESOLUTION: Final = 1e-6
"""Values that differ by less than this share of their size are one value."""


@dataclass(frozen=True)
class AtSteps:
    """At these steps and no others."""

    steps: frozenset[int]
    exact = True

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("at_steps: found no step, allowed: one or more")
        for step in self.steps:
            require_int("at_steps", step, minimum=1)

    def due(self, moment: Moment) -> bool:
        """At each of them."""
        return moment.step in self.steps


@dataclass(frozen=True)
class WhenUnstable:
    """By the clock, more often while a metric is restless, so that there is something to go back to from just before.

    The newest quarter of the last ``window`` values is held against the median of the others, in units of their spread
    (1.4826 times the median absolute deviation, which one outlier does not change):

    - *unstable*, a value that is not finite or further away than ``tolerance``: every ``min_seconds``;
    - *calm*, none further away than half of that: every ``max_seconds``;
    - anything between, and as long as there are too few values: every ``base_seconds``.
    """

    min_seconds: float
    base_seconds: float
    max_seconds: float
    metric: str = "loss"
    window: int = defaults.UNSTABLE_WINDOW
    tolerance: float = defaults.UNSTABLE_TOLERANCE
    exact = False

    def __post_init__(self) -> None:
        for name in ("min_seconds", "base_seconds", "max_seconds", "tolerance"):
            require_positive(f"when_unstable.{name}", getattr(self, name))
        if not self.min_seconds <= self.base_seconds <= self.max_seconds:
            found = f"{self.min_seconds:g}, {self.base_seconds:g}, {self.max_seconds:g}"
            raise ValueError(f"when_unstable: found min, base, max of {found} seconds, allowed: in rising order")
        require_int("when_unstable.window", self.window, minimum=defaults.SHORTEST_WINDOW)
        if self.window > REMEMBERED_VALUES:
            raise ValueError(f"when_unstable.window: found {self.window}, allowed: {REMEMBERED_VALUES} or fewer")

    def interval_seconds(self, values: Sequence[float]) -> float:
        """The interval after these values of the metric, oldest first."""
        values = values[-self.window :]
        if any(not math.isfinite(v) for v in values[-max(1, self.window // 4) :]):
            return self.min_seconds
        if len(values) < self.window:
            return self.base_seconds
        quarter = self.window // 4
        before = [v for v in values[:-quarter] if math.isfinite(v)]
        if not before:
            return self.min_seconds
        middle = statistics.median(before)
        spread = _DEVIATION * statistics.median(abs(v - middle) for v in before)
        unit = max(spread, _RESOLUTION * abs(middle))
        furthest = max(abs(v - middle) for v in values[-quarter:])
        if furthest > self.tolerance * unit:
            return self.min_seconds
        return self.max_seconds if furthest <= self.tolerance / 2 * unit else self.base_seconds

    def due(self, moment: Moment) -> bool:
        """After the interval."""
        return moment.since_last_save_seconds >= self.interval_seconds(moment.recent.get(self.metric, ()))


def at_steps(*steps: int) -> AtSteps:
    """Save at these steps."""
    return AtSteps(frozenset(steps))


def when_unstable(
    *,
    min_seconds: float,
    base_seconds: float,
    max_seconds: float,
    metric: str = "loss",
    window: int = defaults.UNSTABLE_WINDOW,
    tolerance: float = defaults.UNSTABLE_TOLERANCE,
) -> WhenUnstable:
    """Save every ``min_seconds`` while ``metric`` is restless, every ``max_seconds`` while it is calm; see
    WhenUnstable.
    """
    return WhenUnstable(min_seconds, base_seconds, max_seconds, metric, window, tolerance)


def watched_metrics(policy: object) -> frozenset[str]:
    """The metrics whose recent values a rule, or one within it, looks at."""
    own = {policy.metric} if isinstance(policy, WhenUnstable) else set()
    return frozenset(own).union(*(watched_metrics(part) for part in getattr(policy, "policies", ())))
