"""Rules at named steps and by the steadiness of a metric, and the verdict on a state."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.policies.checkpoint_health import with_verdict
from holdfast.policies.keep_rules import KeepBest, StoredCheckpoint
from holdfast.policies.metric_values import as_finite_floats, as_floats
from holdfast.policies.save_rules import DecisionContext, SavePolicy, split_deterministic
from holdfast.policies.save_when_unstable import watched_metrics
from holdfast.store.write.manifests import finite_metrics
from holdfast.training.progress import Steps
from holdfast.training.schedule import Schedule
from holdfast_contract.manifest import CheckpointRef

RULE = holdfast.when_unstable(min_seconds=10, base_seconds=60, max_seconds=600, window=16)
NOISE = st.lists(st.integers(-1000, 1000), min_size=16, max_size=40)


def values_of(numbers: list[int]) -> list[float]:
    return [float(n) for n in numbers]


@given(steps=st.sets(st.integers(1, 10**6), min_size=1), step=st.integers(1, 10**6))
def test_at_steps_is_deterministic(steps: set[int], step: int) -> None:
    rule = holdfast.at_steps(*steps)
    assert rule.due(DecisionContext(step, 0.0)) == (step in steps)
    assert rule.due(DecisionContext(min(steps), 0.0))
    alone, agreed = split_deterministic(holdfast.any_of(rule, RULE))
    assert alone.due(DecisionContext(min(steps), 0.0))
    assert not agreed.due(DecisionContext(min(steps), 0.0))


@given(numbers=NOISE, scale=st.integers(0, 20), shift=st.integers(-8, 8))
def test_the_unit_of_the_metric_does_not_matter(numbers: list[int], scale: int, shift: int) -> None:
    values = values_of(numbers)
    centred = [v - sorted(values[-16:-4])[5] for v in values]
    assert RULE.interval_seconds(values) in {10, 60, 600}
    assert RULE.interval_seconds([v * 2.0**scale for v in centred]) == RULE.interval_seconds(centred)
    assert RULE.interval_seconds([-v for v in centred]) == RULE.interval_seconds(centred)
    assert RULE.interval_seconds([math.nan] * shift + values) == RULE.interval_seconds(values)


@given(numbers=NOISE, bad=st.sampled_from([math.nan, math.inf, -math.inf, 1e9]), place=st.integers(1, 4))
def test_one_bad_value_among_the_newest_is_unstable(numbers: list[int], bad: float, place: int) -> None:
    values = values_of(numbers)
    values[-place] = bad
    assert RULE.interval_seconds(values) == 10


@given(level=st.floats(-1e6, 1e6), slope=st.floats(0, 1e-3))
def test_a_steady_or_slowly_falling_metric_is_calm(level: float, slope: float) -> None:
    assert RULE.interval_seconds([level] * 20) == 600
    assert RULE.interval_seconds([level - slope * n for n in range(20)]) == 600


def test_too_few_values_mean_the_base_interval_and_a_spike_the_shortest() -> None:
    steady = [2.0 + 0.01 * (-1) ** n for n in range(30)]
    assert RULE.interval_seconds([]) == RULE.interval_seconds(steady[:15]) == 60
    assert RULE.interval_seconds(steady) == 600
    assert RULE.interval_seconds([*steady, 2.06]) == 60
    assert RULE.interval_seconds([*steady, 2.4]) == 10
    assert RULE.interval_seconds([*steady, 2.4, *steady[:4]]) == 600
    assert RULE.interval_seconds([math.nan] * 12 + steady[:4]) == 10, "there is nothing finite to compare with"


@given(numbers=NOISE, before=st.floats(0, 700), more=st.floats(0, 700))
def test_a_save_that_is_due_stays_due(numbers: list[int], before: float, more: float) -> None:
    recent = {"loss": values_of(numbers)}
    if RULE.due(DecisionContext(9, before, recent=recent)):
        assert RULE.due(DecisionContext(9, before + more, recent=recent))


@given(
    rules=st.lists(
        st.sampled_from([RULE, holdfast.at_steps(3, 8), holdfast.every_steps(5), holdfast.every_seconds(50)]),
        min_size=1,
    ),
    every=st.booleans(),
    step=st.integers(1, 20),
    seconds=st.floats(0, 700),
    values=NOISE,
)
def test_what_a_rank_decides_alone_depends_on_the_step_alone(
    rules: list[SavePolicy], every: bool, step: int, seconds: float, values: list[int]
) -> None:
    policy = holdfast.all_of(*rules) if every else holdfast.any_of(*rules)
    context = DecisionContext(step, seconds, recent={"loss": values_of(values)})
    leader, other = Schedule(policy, 0), Schedule(policy, 1)
    assert leader.due(context) == other.due(context) == other.due(DecisionContext(step, 0.0))
    assert other.ask(context) is None
    combined = all if every else any
    expected = combined(rule.due(context) for rule in rules)
    assert (leader.due(context) or leader.ask(context) is not None) == expected


def test_watched_metrics_are_those_of_any_depth_and_only_of_completed_steps() -> None:
    other = holdfast.when_unstable(min_seconds=1, base_seconds=2, max_seconds=3, metric="norm")
    policy = holdfast.any_of(holdfast.every_steps(5), holdfast.all_of(RULE, other))
    assert watched_metrics(policy) == {"loss", "norm"}
    steps = Steps(lambda _: None)
    steps.watch(watched_metrics(policy))
    steps.start_at(0)
    steps.add(1, [], {"loss": 2.0, "accuracy": 1.0})
    steps.add(2, [], {"norm": math.inf})
    assert steps.recent() == {"loss": (), "norm": ()}
    steps.poll()
    assert steps.recent() == {"loss": (2.0,), "norm": (math.inf,)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"min_seconds": 0}, "when_unstable.min_seconds: found 0"),
        ({"base_seconds": 5}, "found min, base, max of 10, 5, 600 seconds, allowed: in rising order"),
        ({"window": 7}, "when_unstable.window: found 7, allowed: a whole number of 8 or more"),
        ({"window": 5000}, "when_unstable.window: found 5000, allowed: 1024 or fewer"),
        ({"tolerance": math.nan}, "when_unstable.tolerance: found nan"),
    ],
)
def test_wrong_bounds_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        holdfast.when_unstable(**{"min_seconds": 10, "base_seconds": 60, "max_seconds": 600, **changes})
    assert named in str(caught.value)
    with pytest.raises(ValueError, match="at_steps: found 0, allowed: a whole number of 1 or more"):
        holdfast.at_steps(5, 0)
    with pytest.raises(ValueError, match="at_steps: found no step, allowed: one or more"):
        holdfast.at_steps()


def test_a_verdict_is_stored_and_an_unhealthy_state_is_never_the_best() -> None:
    def stored(metrics: dict[str, float]) -> dict[str, float]:
        return finite_metrics(with_verdict(metrics, holdfast.finite("loss", "norm")))

    assert stored({"loss": 1.0, "norm": 3.0})["healthy"] == 1.0
    assert stored({"loss": 0.5, "norm": math.nan}) == {"loss": 0.5, "healthy": 0.0}
    assert stored({"loss": 0.1}) == {"loss": 0.1, "healthy": 0.0}
    assert with_verdict({"loss": 1.0}, None) == {"loss": 1.0}
    all_metrics = [{"loss": 1.0, "norm": 3.0}, {"loss": 0.5, "norm": math.nan}, {"loss": 2.0, "norm": 1.0}]
    kept = [StoredCheckpoint(CheckpointRef(1, step), stored(metrics)) for step, metrics in enumerate(all_metrics)]
    assert KeepBest(1).keeps(kept) == {CheckpointRef(1, 0)}
    assert KeepBest(5).keeps(kept) == {CheckpointRef(1, 0), CheckpointRef(1, 2)}
    with pytest.raises(ValueError, match="metrics: found 'healthy', allowed: any other name"):
        with_verdict({"healthy": 1.0}, holdfast.finite())


def test_a_predicate_that_fails_costs_the_health_and_not_the_checkpoint() -> None:
    metrics = with_verdict({"loss": 1.0}, lambda metrics: metrics["missing"] > 0)
    assert finite_metrics(metrics) == {"loss": 1.0, "healthy": 0.0}


def test_metrics_are_single_numbers() -> None:
    with pytest.raises(TypeError, match=r"metrics\['loss'\]: found list .*, allowed: one number"):
        as_floats({"loss": [1.0, 2.0]})


def test_messages_carry_the_metrics_that_can_be_read_and_are_finite() -> None:
    class OfAFailedStep:
        def __float__(self) -> float:
            raise RuntimeError("INTERNAL: the peer is gone")

    metrics = {"loss": 2, "norm": math.inf, "accuracy": math.nan, "rate": OfAFailedStep(), "words": "many"}
    assert as_finite_floats(metrics) == {"loss": 2.0}
