"""How often training fails: the expectation, what observation makes of it, and what follows for the interval."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.policies.failure_rate import PRIOR_SECONDS, mean_seconds_between_failures
from holdfast.policies.save_adaptive import SaveAdaptively, daly_interval_seconds
from holdfast.policies.save_rules import DecisionContext
from holdfast_contract import codec
from holdfast_contract.sync import FailureHistory

counts = st.integers(0, 10_000)
seconds = st.floats(0, 1e8)
priors = st.fixed_dictionaries({"prior_seconds": st.floats(1, 1e8), "prior_failures": st.floats(0.1, 1000)})
rules = st.builds(
    lambda low, more, mean, weight: holdfast.adaptive(
        min_seconds=low, max_seconds=low + more, mean_seconds_between_failures=mean, prior_failures=weight
    ),
    st.floats(0.1, 1000),
    st.floats(0, 10_000),
    st.floats(1, 1e8),
    st.floats(0.1, 1000),
)
costs = st.tuples(st.floats(1e-4, 1000), st.floats(1e-4, 1000))


@given(prior=priors)
def test_without_observations_it_is_what_was_expected(prior: dict[str, float]) -> None:
    assert mean_seconds_between_failures(FailureHistory(), **prior) == pytest.approx(prior["prior_seconds"])
    assert mean_seconds_between_failures(FailureHistory()) == PRIOR_SECONDS


@given(prior=priors, failures=counts, running=seconds, more=st.integers(1, 100), longer=st.floats(1, 1e6))
def test_every_failure_makes_it_shorter_and_every_second_longer(
    prior: dict[str, float], failures: int, running: float, more: int, longer: float
) -> None:
    mean = mean_seconds_between_failures(FailureHistory(failures, running), **prior)
    assert mean_seconds_between_failures(FailureHistory(failures + more, running), **prior) < mean
    assert mean_seconds_between_failures(FailureHistory(failures, running + longer), **prior) >= mean


@given(prior=priors, true_mean=st.floats(10, 1e5), count=st.integers(10_000, 10**6))
def test_much_observation_overrules_the_expectation(prior: dict[str, float], true_mean: float, count: int) -> None:
    """The weight of the prior is that of ``prior_failures`` failures, so it vanishes as one over their number."""
    mean = mean_seconds_between_failures(FailureHistory(count, count * true_mean), **prior)
    share = prior["prior_failures"] / (count + prior["prior_failures"])
    assert mean == pytest.approx((1 - share) * true_mean + share * prior["prior_seconds"])


def test_it_is_the_posterior_mean_by_numerical_integration() -> None:
    """The density of the rate r after n failures in t seconds is proportional to r^(a-1) e^(-br) * r^n e^(-rt)."""
    a, prior_seconds, n, t = 2.0, 3600.0, 5, 7200.0
    b = a * prior_seconds
    rates = [i * 1e-6 for i in range(1, 20_000)]
    weights = [r ** (a - 1 + n) * math.exp(-(b + t) * r) for r in rates]
    mean_rate = sum(r * w for r, w in zip(rates, weights, strict=True)) / sum(weights)
    found = mean_seconds_between_failures(FailureHistory(n, t), prior_seconds=prior_seconds, prior_failures=a)
    assert found == pytest.approx(1 / mean_rate, rel=1e-6)


@given(rule=rules, cost=costs, failures=counts, running=seconds, more=st.integers(1, 100), longer=st.floats(1, 1e6))
def test_the_interval_shrinks_with_failures_grows_without_and_stays_in_its_bounds(
    rule: SaveAdaptively, cost: tuple[float, float], failures: int, running: float, more: int, longer: float
) -> None:
    interval = rule.interval_seconds(*cost, FailureHistory(failures, running))
    assert rule.min_seconds <= interval <= rule.max_seconds
    assert interval >= min(cost[1], rule.max_seconds), "never faster than storage takes it"
    assert rule.interval_seconds(*cost, FailureHistory(failures + more, running)) <= interval
    assert rule.interval_seconds(*cost, FailureHistory(failures, running + longer)) >= interval


@given(rule=rules, cost=costs)
def test_without_observations_the_interval_is_that_of_the_expectation(
    rule: SaveAdaptively, cost: tuple[float, float]
) -> None:
    best = max(daly_interval_seconds(cost[0], rule.mean_seconds_between_failures), cost[1], rule.min_seconds)
    assert rule.interval_seconds(*cost) == pytest.approx(min(best, rule.max_seconds))
    assert rule.interval_seconds(None, None, FailureHistory(9, 1.0)) == rule.min_seconds, "no save was measured yet"


@given(rule=rules, cost=costs, failures=counts, running=seconds, since=st.floats(0, 20_000))
def test_a_save_is_due_after_that_interval(
    rule: SaveAdaptively, cost: tuple[float, float], failures: int, running: float, since: float
) -> None:
    history = FailureHistory(failures, running)
    context = DecisionContext(1, since, cost[0], cost[1], history=history)
    assert rule.due(context) == (since >= rule.interval_seconds(*cost, history))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mean_seconds_between_failures": 0}, "adaptive.mean_seconds_between_failures: found 0"),
        ({"prior_failures": -1}, "adaptive.prior_failures: found -1"),
        ({"prior_failures": math.inf}, "adaptive.prior_failures: found inf"),
    ],
)
def test_a_wrong_expectation_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        holdfast.adaptive(min_seconds=1, max_seconds=2, **arguments)


@pytest.mark.parametrize(
    "text", ['{"failures": -1}', '{"running_seconds": -0.5}', '{"running_seconds": 1e999}', '{"failures": 1.5}', "[]"]
)
def test_a_history_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(codec.CodecError, match="FailureHistory"):
        codec.decode(FailureHistory, text)
