"""Save policies and what is kept: rules as values, and the errors that name what is wrong."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.policies.save_adaptive import daly_interval_seconds
from holdfast.policies.save_rules import DecisionContext, SaveOnlyAtEnd, split_deterministic


def at(step: int, seconds: float = 0.0) -> DecisionContext:
    return DecisionContext(step, seconds)


def test_every_steps_is_a_function_of_the_step_alone() -> None:
    policy = holdfast.every_steps(10)
    assert [step for step in range(1, 41) if policy.due(at(step))] == [10, 20, 30, 40]
    assert split_deterministic(policy) == (policy, SaveOnlyAtEnd())


def test_any_of_keeps_rules_over_steps_deterministic() -> None:
    steps, seconds = holdfast.every_steps(10), holdfast.every_seconds(60)
    alone, agreed = split_deterministic(holdfast.any_of(steps, seconds))
    assert alone.due(at(10))
    assert not alone.due(at(11, 61.0))
    assert agreed.due(at(11, 61.0))
    assert not agreed.due(at(10))


def test_a_combination_of_rules_over_steps_is_decided_by_every_rank_alone() -> None:
    both = holdfast.all_of(holdfast.any_of(holdfast.every_steps(10), holdfast.at_steps(3)), holdfast.every_steps(2))
    assert split_deterministic(both) == (both, SaveOnlyAtEnd())
    assert [step for step in range(1, 31) if both.due(at(step))] == [10, 20, 30]
    timed = holdfast.all_of(
        holdfast.any_of(holdfast.every_steps(10), holdfast.every_seconds(60)), holdfast.every_steps(2)
    )
    assert split_deterministic(timed) == (SaveOnlyAtEnd(), timed)


def test_all_of_with_a_clock_is_agreed_on_as_a_whole() -> None:
    both = holdfast.all_of(holdfast.every_steps(10), holdfast.every_seconds(60))
    alone, agreed = split_deterministic(both)
    assert alone == SaveOnlyAtEnd()
    assert agreed.due(at(20, 60.0))
    assert not agreed.due(at(21, 60.0))
    assert not agreed.due(at(20, 59.0))


@given(stall=st.floats(1e-4, 100), mtbf=st.floats(1000, 1e6))
def test_dalys_interval_loses_no_more_than_its_neighbours(stall: float, mtbf: float) -> None:
    """Against the exact expected time for exponential failures: (M / tau) (e^((tau + w) / M) - 1)."""

    def lost(tau: float) -> float:
        return mtbf / tau * math.expm1((tau + stall) / mtbf)

    best = daly_interval_seconds(stall, mtbf)
    assert lost(best) <= min(lost(best * 1.5), lost(best / 1.5))


def test_adaptive_is_bounded_and_never_faster_than_storage() -> None:
    policy = holdfast.adaptive(min_seconds=10, max_seconds=1000, mean_seconds_between_failures=10_000)
    assert policy.interval_seconds(None, None) == 10
    assert policy.interval_seconds(0.0001, 0.5) == 10
    assert policy.interval_seconds(0.0001, 45.0) == 45.0
    assert policy.interval_seconds(1000.0, 1.0) == 1000
    assert policy.interval_seconds(2.0, 1.0) == pytest.approx(199.3, abs=1.0)


def test_combinations_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="any_of: found no rule"):
        holdfast.any_of()
