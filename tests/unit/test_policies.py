"""Save policies and what is kept: rules as values, and the errors that name what is wrong."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.policies import Moment, Never, daly_interval_seconds, policies_from_json, split


def at(step: int, seconds: float = 0.0) -> Moment:
    return Moment(step, seconds)


def test_every_steps_is_a_function_of_the_step_alone() -> None:
    policy = holdfast.every_steps(10)
    assert [step for step in range(1, 41) if policy.due(at(step))] == [10, 20, 30, 40]
    assert split(policy) == (policy, Never())


def test_any_of_keeps_rules_over_steps_exact() -> None:
    steps, seconds = holdfast.every_steps(10), holdfast.every_seconds(60)
    exact, agreed = split(holdfast.any_of(steps, seconds))
    assert exact.due(at(10))
    assert not exact.due(at(11, 61.0))
    assert agreed.due(at(11, 61.0))
    assert not agreed.due(at(10))


def test_all_of_with_a_clock_is_agreed_on_as_a_whole() -> None:
    both = holdfast.all_of(holdfast.every_steps(10), holdfast.every_seconds(60))
    exact, agreed = split(both)
    assert exact == Never()
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


def test_a_specification_says_what_the_arguments_say() -> None:
    text = json.dumps({"every": {"steps": 50}, "keep": {"latest": 2, "best": 1, "mode": "max", "everySteps": 100}})
    every, keep = policies_from_json(text, "X")
    assert every == holdfast.every_steps(50)
    assert keep == holdfast.keep(latest=2, best=1, mode="max", every_steps=100)
    assert policies_from_json("{}", "X") == (holdfast.every_seconds(600), holdfast.keep())
    adaptive, _ = policies_from_json('{"every": {"adaptive": {"minSeconds": 5, "maxSeconds": 50}}}', "X")
    assert adaptive == holdfast.adaptive(min_seconds=5, max_seconds=50)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "X: found"),
        ("{", "X: found"),
        ('{"evry": {}}', "X.evry: unknown field, allowed: every, keep"),
        ('{"every": {}}', "X.every: found no rule"),
        ('{"every": {"steps": 0}}', "every_steps: found 0, allowed: a whole number of 1 or more"),
        ('{"every": {"seconds": "5"}}', "every_seconds: found '5'"),
        ('{"every": {"adaptive": {"minSeconds": 9, "maxSeconds": 3}}}', "adaptive.max_seconds: found 3, allowed: min"),
        ('{"keep": {"latest": 0}}', "keep.latest: found 0"),
        ('{"keep": {"mode": "least"}}', "keep.mode: found 'least', allowed: 'min' or 'max'"),
    ],
)
def test_a_wrong_specification_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        policies_from_json(text, "X")
    assert named in str(caught.value)


def test_combinations_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="any_of: found no rule"):
        holdfast.any_of()
