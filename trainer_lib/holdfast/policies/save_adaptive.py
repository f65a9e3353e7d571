"""The save rule that finds its own interval, from the measured cost of a save and the rate of failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.policies.failure_rate import PRIOR_FAILURES, PRIOR_SECONDS, UNOBSERVED
from holdfast.policies.failure_rate import mean_seconds_between_failures as posterior_seconds
from holdfast.policies.field_checks import require_positive
from holdfast.policies.save_rules import DecisionContext
from holdfast_contract.sync import FailureHistory


@dataclass(frozen=True)
class SaveAdaptively:
    """Save at the interval that loses the least training time overall.

    Daly's higher-order optimum (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22, 2006) refines Young's first-order sqrt(2 w M) (CACM 17, 1974). Let w be how long a save stops the
    loop and M the mean time between failures, both in seconds:

        tau = sqrt(2 w M) * (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w     for w < 2 M,     else M

    A save is worth nothing until it is committed, so the interval is never shorter than a save takes until its commit.
    Then the interval is clamped to [min_seconds, max_seconds]. Before the first save nothing has been measured, and the
    interval is ``min_seconds``.

    M combines an expectation with what was observed: ``mean_seconds_between_failures``, which weighs as much as
    ``prior_failures`` observed failures, is corrected by the failures of all attempts of the job; see
    ``holdfast.policies.failure_rate``. The operator counts them. Without an operator the causes of earlier ends are not
    known. Then only the time that this attempt has run without a failure corrects the expectation.
    """

    min_seconds: float
    max_seconds: float
    mean_seconds_between_failures: float = PRIOR_SECONDS
    prior_failures: float = PRIOR_FAILURES
    deterministic = False

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
        """The interval between the beginnings of two saves.

        Args:
            stall_seconds: how long a save stops the loop; None if none was measured yet.
            write_seconds: how long a save takes until it is committed; None if none was committed yet.
            history: the failures so far and the seconds that training ran.
        """
        if stall_seconds is None:
            return self.min_seconds
        mean = posterior_seconds(
            history, prior_seconds=self.mean_seconds_between_failures, prior_failures=self.prior_failures
        )
        best = daly_interval_seconds(stall_seconds, mean)
        return min(max(best, write_seconds or 0.0, self.min_seconds), self.max_seconds)

    def due(self, context: DecisionContext) -> bool:
        """Whether the interval is over."""
        interval = self.interval_seconds(context.stall_seconds, context.write_seconds, context.history)
        return context.since_last_save_seconds >= interval


def adaptive(
    *,
    min_seconds: float,
    max_seconds: float,
    mean_seconds_between_failures: float = PRIOR_SECONDS,
    prior_failures: float = PRIOR_FAILURES,
) -> SaveAdaptively:
    """Save at the interval that loses the least training time overall; see ``SaveAdaptively``.

    Args:
        min_seconds: the shortest allowed interval.
        max_seconds: the longest allowed interval, ``min_seconds`` or more.
        mean_seconds_between_failures: the expectation before any failure was observed.
        prior_failures: how many observed failures that expectation weighs as much as.

    Raises:
        ValueError: an argument is not a finite number above 0, or the two bounds are not in rising order.
    """
    return SaveAdaptively(min_seconds, max_seconds, mean_seconds_between_failures, prior_failures)


def daly_interval_seconds(stall_seconds: float, mean_seconds_between_failures: float) -> float:
    """Daly's interval; see ``SaveAdaptively``. At least ``stall_seconds``, or the loop would do nothing but save."""
    w, m = stall_seconds, mean_seconds_between_failures
    if w >= 2 * m:
        return m
    ratio = w / (2 * m)
    return max(w, math.sqrt(2 * w * m) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - w)
