"""How often training fails: an expectation, corrected by what was observed."""

from __future__ import annotations

from typing import Final

from holdfast_contract.sync import FailureHistory

PRIOR_SECONDS: Final = 6 * 3600.0
"""Expected seconds of running between failures, unless the program or the job says otherwise. The 54-day pre-training
run of Llama 3 was interrupted every 3 hours on 16,384 GPUs (arXiv:2407.21783, section 3.3.4); smaller jobs fail less
often."""
PRIOR_FAILURES: Final = 1.0
"""How many observed failures the expectation weighs as much as. It is one, so a few failures outweigh it."""

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
