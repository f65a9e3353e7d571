"""A job's rules on their way from the manifest to the session: every field acts, none is let through and ignored."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.policies.job_rules import JobRules, every_from, keep_from, rules_from_json
from holdfast.policies.keep_rules import StoredCheckpoint
from holdfast.policies.save_rules import DecisionContext, SavePolicy
from holdfast.training.config import SessionArguments, resolve_config
from holdfast_contract import keys
from holdfast_contract.api import CheckpointSpec
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import FailureHistory
from tests.support.operator.job_policy import policy_of

CALM, WILD = {"loss": [1.0] * 32}, {"loss": [1.0] * 31 + [9.0]}
BOUNDS = {"minSeconds": 10, "baseSeconds": 60, "maxSeconds": 600}
FAILED = FailureHistory(1, 100.0)


def every_of(every: dict[str, Any]) -> SavePolicy:
    """The rule for saves that a session of this job has."""
    return rules_from_json(policy_of(every=every), "X").every


def kept_of(keep: dict[str, Any], checkpoints: list[StoredCheckpoint]) -> list[int]:
    """The steps that a session of this job keeps."""
    rule = rules_from_json(policy_of(keep=keep), "X").keep
    return sorted(ref.step for ref in rule.keeps(checkpoints))


def due(step: int = 1, seconds: float = 0.0, **known: Any) -> DecisionContext:
    return DecisionContext(step, seconds, **known)


# One row per field of a rule for saves: with the field as it is, a save is due in the first context and not at the second.
SAVES: dict[str, tuple[dict[str, Any], DecisionContext, DecisionContext]] = {
    "seconds": ({"seconds": 30}, due(seconds=30.0), due(seconds=29.0)),
    "steps": ({"steps": 5}, due(10), due(11, 1e9)),
    "atSteps": ({"atSteps": [3, 8]}, due(8), due(9, 1e9)),
    "onlyAtEnd": ({"onlyAtEnd": True}, due(1), due(1, 1e9)),
    "anyOf": ({"anyOf": [{"steps": 5}, {"seconds": 30}]}, due(6, 30.0), due(6, 29.0)),
    "allOf": ({"allOf": [{"steps": 5}, {"seconds": 30}]}, due(5, 30.0), due(5, 29.0)),
    "anyOf.allOf": ({"anyOf": [{"allOf": [{"steps": 5}, {"atSteps": [10]}]}, {"steps": 7}]}, due(10), due(5)),
    "adaptive.minSeconds": ({"adaptive": {"minSeconds": 9, "maxSeconds": 99}}, due(seconds=9.0), due(seconds=8.0)),
    "adaptive.maxSeconds": (
        {"adaptive": {"minSeconds": 9, "maxSeconds": 99}},
        due(seconds=99.0, stall_seconds=50.0),
        due(seconds=98.0, stall_seconds=50.0),
    ),
    "adaptive.priorMeanSecondsBetweenFailures": (
        {"adaptive": {"minSeconds": 1, "maxSeconds": 9999, "priorMeanSecondsBetweenFailures": 5000}},
        due(seconds=100.0, stall_seconds=1.0),
        due(seconds=98.0, stall_seconds=1.0),
    ),
    "adaptive.priorFailures": (
        {"adaptive": {"minSeconds": 1, "maxSeconds": 9999, "priorFailures": 100}},
        due(seconds=207.0, stall_seconds=1.0, history=FAILED),
        due(seconds=205.0, stall_seconds=1.0, history=FAILED),
    ),
    "whenUnstable.minSeconds": (
        {"whenUnstable": BOUNDS},
        due(seconds=10.0, recent=WILD),
        due(seconds=9.0, recent=WILD),
    ),
    "whenUnstable.baseSeconds": ({"whenUnstable": BOUNDS}, due(seconds=60.0), due(seconds=59.0)),
    "whenUnstable.maxSeconds": (
        {"whenUnstable": BOUNDS},
        due(seconds=600.0, recent=CALM),
        due(seconds=599.0, recent=CALM),
    ),
    "whenUnstable.metric": (
        {"whenUnstable": {**BOUNDS, "metric": "norm"}},
        due(seconds=10.0, recent={"norm": [math.nan]}),
        due(seconds=10.0, recent=WILD),
    ),
    "whenUnstable.window": (
        {"whenUnstable": {**BOUNDS, "window": 8}},
        due(seconds=10.0, recent={"loss": [1.0] * 7 + [9.0]}),
        due(seconds=59.0, recent={"loss": [1.0] * 6}),
    ),
    "whenUnstable.tolerance": (
        {"whenUnstable": {**BOUNDS, "tolerance": 2.0}},
        due(seconds=10.0, recent={"loss": [1.0, 1.1] * 15 + [1.0, 1.3]}),
        due(seconds=10.0, recent={"loss": [1.0, 1.1] * 16}),
    ),
}
NEVER_DUE = {"onlyAtEnd"}

ALL_STEPS = [
    StoredCheckpoint(CheckpointRef(1, n), {"loss": abs(n - 4.0)}, elapsed_seconds=10.0 * n) for n in range(1, 13)
]
# One row per field of what is kept, of twelve checkpoints whose loss is best at 4 and that are 10 seconds apart.
KEEPS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "": ({}, [10, 11, 12]),
    "latest": ({"latest": 5}, [8, 9, 10, 11, 12]),
    "best": ({"best": 1, "metric": "loss"}, [4, 10, 11, 12]),
    "metric": ({"best": 1, "metric": "norm"}, [10, 11, 12]),
    "mode": ({"latest": 2, "best": 1, "metric": "loss", "mode": "max"}, [11, 12]),
    "everySteps": ({"everySteps": 5}, [5, 10, 11, 12]),
    "everySeconds": ({"everySeconds": 60}, [1, 6, 10, 11, 12]),
    "steps": ({"steps": [2, 7]}, [2, 7, 10, 11, 12]),
    "all": ({"all": True}, list(range(1, 13))),
    "anyOf": ({"latest": 2, "anyOf": [{"steps": [2]}, {"everySteps": 6}]}, [2, 6, 11, 12]),
    "allOf": ({"latest": 2, "allOf": [{"latest": 9}, {"everySteps": 3}]}, [6, 9, 11, 12]),
    "anyOf.allOf": (
        {"latest": 2, "anyOf": [{"allOf": [{"latest": 9, "steps": [1]}, {"everySteps": 3, "steps": [1]}]}]},
        [1, 6, 9, 11, 12],
    ),
}


@pytest.mark.parametrize("row", SAVES)
def test_every_field_of_a_rule_for_saves_acts(row: str) -> None:
    every, first, second = SAVES[row]
    rule = every_of(every)
    assert rule.due(first) == (row not in NEVER_DUE)
    assert not rule.due(second)


@pytest.mark.parametrize("row", KEEPS)
def test_every_field_of_what_is_kept_acts(row: str) -> None:
    keep, steps = KEEPS[row]
    assert kept_of(keep, ALL_STEPS) == steps


def test_no_field_of_the_specification_is_without_a_row() -> None:
    definitions = CheckpointSpec.model_json_schema(by_alias=True)["$defs"]

    def names(model: str, prefix: str = "") -> set[str]:
        return {f"{prefix}{name}" for name in definitions[model]["properties"]}

    saves = names("EverySpec") - {"adaptive", "whenUnstable"}
    saves |= names("AdaptiveSpec", "adaptive.") | names("WhenUnstableSpec", "whenUnstable.")
    assert saves <= set(SAVES)
    assert names("KeepSpec") <= set(KEEPS)
    for inner in ("SaveRuleSpec", "SaveTermSpec"):
        assert names(inner) <= names("EverySpec"), "what stands in a list is read by the same function"
    for inner in ("KeepRuleSpec", "KeepTermSpec"):
        assert names(inner) <= names("KeepSpec"), "what stands in a list is read by the same function"
    assert names("HealthySpec") == {"finite"}, "see the test of what is healthy"


def test_what_is_healthy_is_asked_of_the_metrics_that_the_job_names() -> None:
    healthy = rules_from_json(policy_of(healthy={"finite": ["loss", "norm"]}), "X").healthy
    assert healthy is not None
    assert healthy({"loss": 1.0, "norm": 2.0, "other": math.nan})
    assert not healthy({"loss": 1.0, "norm": math.inf})
    assert not healthy({"loss": 1.0})
    assert rules_from_json(policy_of(), "X").healthy is None


def test_a_specification_says_what_the_arguments_say() -> None:
    rules = rules_from_json(policy_of(every={"steps": 50}, keep={"latest": 2, "everySteps": 100}), "X")
    assert rules == JobRules(holdfast.every_steps(50), holdfast.keep(latest=2, every_steps=100))
    assert rules_from_json(policy_of(), "X") == rules_from_json("{}", "X") == JobRules()
    assert JobRules() == JobRules(holdfast.every_seconds(600), holdfast.keep())
    adaptive = {"minSeconds": 5, "maxSeconds": 50}
    assert every_of({"adaptive": adaptive}) == holdfast.adaptive(min_seconds=5, max_seconds=50)
    full = {**adaptive, "priorMeanSecondsBetweenFailures": 60, "priorFailures": 3}
    expected = holdfast.adaptive(min_seconds=5, max_seconds=50, mean_seconds_between_failures=60, prior_failures=3)
    assert every_of({"adaptive": full}) == expected
    unstable = holdfast.when_unstable(min_seconds=10, base_seconds=60, max_seconds=600)
    assert every_of({"whenUnstable": BOUNDS}) == unstable
    assert every_of({"onlyAtEnd": True}) == holdfast.only_at_end()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "X: found"),
        ("{", "X: found"),
        ('{"evry": {}}', "X.evry: unknown field, allowed: every, healthy, keep"),
        ('{"every": {}}', "X.every: found no rule, allowed: exactly one of"),
        ('{"every": {"steps": 2, "seconds": 3}}', "X.every: found seconds, steps, allowed: exactly one of"),
        ('{"every": {"steps": 0}}', "every_steps: found 0, allowed: a whole number of 1 or more"),
        ('{"every": {"seconds": "5"}}', "every_seconds: found '5'"),
        ('{"every": {"adaptive": {"minSeconds": 9, "maxSeconds": 3}}}', "adaptive.max_seconds: found 3, allowed: min"),
        ('{"every": {"adaptive": {"mtbf": 9}}}', "X.every.adaptive.mtbf: unknown field"),
        ('{"every": {"atSteps": 5}}', "X.every.atSteps: found 5, allowed: a list"),
        ('{"every": {"whenUnstable": {"minSeconds": 9}}}', "base_seconds"),
        ('{"every": {"onlyAtEnd": false}}', "X.every.onlyAtEnd: found False, allowed: true"),
        ('{"every": {"anyOf": [{"steps": 5}, {"allOf": []}]}}', "X.every.anyOf[1].allOf: found [], allowed: a list"),
        ('{"every": {"anyOf": [{"allOf": [{"every": 1}]}]}}', "X.every.anyOf[0].allOf[0].every: unknown field"),
        ('{"keep": {"latest": 0}}', "keep.latest: found 0"),
        (
            '{"keep": {"best": 1, "metric": "loss", "mode": "least"}}',
            "keep.mode: found 'least', allowed: 'min' or 'max'",
        ),
        ('{"keep": {"mode": "max"}}', "X.keep.mode: found 'max' without metric"),
        ('{"keep": {"all": true, "latest": 3}}', "X.keep: found all, latest, allowed: all alone"),
        ('{"keep": {"anyOf": [{}]}}', "keep: found no rule"),
        ('{"keep": {"steps": "all"}}', "X.keep.steps: found 'all', allowed: a list"),
        ('{"healthy": {"finite": []}}', "X.healthy.finite: found [], allowed: a list"),
        ('{"healthy": {"finite": [3]}}', "X.healthy.finite: found 3, allowed: names of metrics"),
    ],
)
def test_a_wrong_specification_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        rules_from_json(text, "X")
    assert named in str(caught.value)


def test_an_argument_of_the_program_wins_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pod = {
        keys.ENV_CHECKPOINT_PATH: "/checkpoints",
        keys.ENV_CHECKPOINT_POLICY: policy_of(every={"steps": 5}, keep={"latest": 9}, healthy={"finite": ["loss"]}),
    }
    with caplog.at_level(logging.WARNING):
        job = resolve_config(SessionArguments(), pod)
    assert not caplog.records
    assert (job.every, job.keep) == (holdfast.every_steps(5), holdfast.keep(latest=9))
    assert job.healthy is not None
    mine = holdfast.finite("norm")
    with caplog.at_level(logging.WARNING):
        where = resolve_config(SessionArguments(every=holdfast.every_steps(7), healthy=mine), pod)
    assert (where.every, where.keep, where.healthy) == (holdfast.every_steps(7), holdfast.keep(latest=9), mine)
    assert "the program's own every, healthy is used" in caplog.text


# Any specification that the models take, and what it means, said once more and independently.
_steps = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted)
_leaves = st.one_of(
    st.fixed_dictionaries({"seconds": st.integers(1, 20)}),
    st.fixed_dictionaries({"steps": st.integers(1, 6)}),
    st.fixed_dictionaries({"atSteps": _steps}),
)
_all = st.lists(_leaves, min_size=1, max_size=3).map(lambda rules: {"allOf": rules})
_terms = st.one_of(_leaves, _all)
_everys = st.one_of(_terms, st.lists(_terms, min_size=1, max_size=3).map(lambda rules: {"anyOf": rules}))
_kept = st.fixed_dictionaries(
    {},
    optional={
        "latest": st.integers(2, 6),
        "everySteps": st.integers(1, 6),
        "steps": _steps,
        "everySeconds": st.integers(1, 50),
    },
)
_some = _kept.filter(bool)
_every_one = st.lists(_some, min_size=1, max_size=3)
_kept_terms = st.one_of(_some, st.builds(lambda own, inner: own | {"allOf": inner}, _kept, _every_one))
_keeps = st.one_of(
    st.just({"all": True}),
    st.builds(
        lambda own, any_of, all_of: own | ({"anyOf": any_of} if any_of else {}) | ({"allOf": all_of} if all_of else {}),
        _kept,
        st.lists(_kept_terms, max_size=3),
        st.lists(_some, max_size=3),
    ),
)


def means_due(spec: dict[str, Any], context: DecisionContext) -> bool:
    if "anyOf" in spec:
        return any(means_due(inner, context) for inner in spec["anyOf"])
    if "allOf" in spec:
        return all(means_due(inner, context) for inner in spec["allOf"])
    if "seconds" in spec:
        return context.since_last_save_seconds >= spec["seconds"]
    return context.step % spec["steps"] == 0 if "steps" in spec else context.step in spec["atSteps"]


def means_kept(spec: dict[str, Any], everything: list[StoredCheckpoint], latest: int = 0) -> set[int]:
    steps = [c.ref.step for c in everything]
    if "all" in spec:
        return set(steps)
    kept = set(steps[max(0, len(steps) - spec.get("latest", latest)) :])
    kept |= {n for n in steps if "everySteps" in spec and n % spec["everySteps"] == 0} | (
        set(spec.get("steps", ())) & set(steps)
    )
    seen = set()
    for checkpoint in everything if "everySeconds" in spec else ():
        interval = int((checkpoint.elapsed_seconds or 0.0) // spec["everySeconds"])
        if interval not in seen:
            kept.add(checkpoint.ref.step)
        seen.add(interval)
    for inner in spec.get("anyOf", ()):
        kept |= means_kept(inner, everything)
    if "allOf" in spec:
        kept |= set.intersection(*(means_kept(inner, everything) for inner in spec["allOf"]))
    return kept


@settings(deadline=None)
@given(every=_everys, step=st.integers(1, 13), since=st.integers(0, 21))
def test_a_rule_for_saves_means_what_it_says(every: dict[str, Any], step: int, since: int) -> None:
    context = DecisionContext(step, float(since))
    assert every_of(every).due(context) == means_due(every, context) == every_from(every, "X").due(context)


@settings(deadline=None)
@given(keep=_keeps, count=st.integers(0, 12))
def test_what_is_kept_is_what_the_job_says(keep: dict[str, Any], count: int) -> None:
    checkpoints = ALL_STEPS[:count]
    assert set(kept_of(keep, checkpoints)) == means_kept(keep, checkpoints, latest=3)
    rule = keep_from(keep, "X")
    assert {ref.step for ref in rule.keeps(checkpoints)} == means_kept(keep, checkpoints, latest=3)
