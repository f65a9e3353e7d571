"""How often training fails: an expectation, corrected by what was observed."""

from __future__ import annotations

from typing import Final

from holdfast_contract import defaults
from holdfast_contract.sync import FailureHistory

PRIOR_SECONDS: Final = float(defaults.SECONDS_BETWEEN_FAILURES)
PRIOR_FAILURES: Final = float(defaults.PRIOR_FAILURES)

UNOBSERVED: Final = FailureHistory()


def mean_seconds_between_failures(
    history: FailureHistory, *, prior_seconds: float = PRIOR_SECONDS, prior_failures: float = PRIOR_FAILURES
) -> float:
    """Seconds of running between two failures: one divided by the posterior mean of their rate.

    Failures are modelled as a Poisson process of unknown rate r per second of running. Take a Gamma prior of shape a
    and rate b (in seconds), whose mean a / b is the expected rate. Then n failures in t seconds lead to a Gamma
    posterior of shape a + n and rate b + t (A. Gelman et al., Bayesian Data Analysis, third edition, section 2.6). Its
    mean is (a + n) / (b + t). Here a = ``prior_failures`` and b = a * ``prior_seconds``, therefore

        M = (a * prior_seconds + t) / (a + n)

    Without observations M is ``prior_seconds``. Each failure makes it shorter, each second without one longer.

    Args:
        history: n and t: the failures observed, and the seconds that training ran.
        prior_seconds: the expected seconds between failures, above 0.
        prior_failures: how many observed failures the expectation weighs as much as, above 0.
    """
    observed = prior_failures * prior_seconds + history.running_seconds
    return observed / (prior_failures + history.failures)
