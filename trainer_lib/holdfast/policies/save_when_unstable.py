"""The save rule that saves more often while a metric is unstable."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.policies.field_checks import require_int, require_positive
from holdfast.policies.metric_values import REMEMBERED_VALUES
from holdfast.policies.save_rules import DecisionContext
from holdfast_contract import defaults

_DEVIATION: Final = 1.4826
"""The median absolute deviation times this is the standard deviation, if values are normally distributed."""
_RESOLUTION: Final = 1e-6
"""Two values that differ by less than this share of their size count as equal."""


@dataclass(frozen=True)
class SaveWhenUnstable:
    """Save by the clock, and more often while a metric is unstable, so that a checkpoint from just before is there.

    The newest quarter of the last ``window`` values is compared with the median of the others. The unit of distance is
    the spread of those others: 1.4826 times their median absolute deviation, which one outlier does not change.

    - *unstable*: a new value is not finite, or further away than ``tolerance``. Save every ``min_seconds``.
    - *calm*: no new value is further away than half of ``tolerance``. Save every ``max_seconds``.
    - anything between, or fewer than ``window`` values: save every ``base_seconds``.
    """

    min_seconds: float
    base_seconds: float
    max_seconds: float
    metric: str = "loss"
    window: int = defaults.UNSTABLE_WINDOW
    tolerance: float = defaults.UNSTABLE_TOLERANCE
    deterministic = False

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
        """The interval that follows from ``values`` of the metric, oldest first."""
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

    def due(self, context: DecisionContext) -> bool:
        """Whether the interval is over."""
        return context.since_last_save_seconds >= self.interval_seconds(context.recent.get(self.metric, ()))


def when_unstable(
    *,
    min_seconds: float,
    base_seconds: float,
    max_seconds: float,
    metric: str = "loss",
    window: int = defaults.UNSTABLE_WINDOW,
    tolerance: float = defaults.UNSTABLE_TOLERANCE,
) -> SaveWhenUnstable:
    """Save more often while a metric is unstable; see ``SaveWhenUnstable``.

    Args:
        min_seconds: the interval while the metric is unstable.
        base_seconds: the interval otherwise, and while fewer than ``window`` values are known.
        max_seconds: the interval while the metric is calm.
        metric: the name of a metric given to ``commit``.
        window: how many of the latest values to look at, 8 to 1024.
        tolerance: how far a value of an unstable metric is from the median, in units of the spread.

    Raises:
        ValueError: an argument has a wrong value, or the three intervals are not in rising order.
    """
    return SaveWhenUnstable(min_seconds, base_seconds, max_seconds, metric, window, tolerance)


def watched_metrics(policy: object) -> frozenset[str]:
    """The metrics whose recent values a save rule looks at, or a rule within it."""
    own = {policy.metric} if isinstance(policy, SaveWhenUnstable) else set()
    return frozenset(own).union(*(watched_metrics(part) for part in getattr(policy, "policies", ())))
