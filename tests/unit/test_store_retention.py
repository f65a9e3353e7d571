from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.policies.job_rules import keep_from
from holdfast.policies.keep_rules import (
    KeepBest,
    KeepEverySteps,
    KeepEverything,
    KeepLatest,
    KeepRule,
    KeptByAll,
    StoredCheckpoint,
    superfluous,
)
from holdfast_contract.manifest import CheckpointRef

_refs = st.builds(CheckpointRef, st.integers(1, 4), st.integers(0, 60))
_values = st.floats(allow_nan=True, allow_infinity=True)
_checkpoints = st.lists(
    st.builds(StoredCheckpoint, _refs, st.dictionaries(st.sampled_from(["loss", "accuracy"]), _values), st.booleans()),
    unique_by=lambda c: c.ref,
    max_size=25,
)
_simple: st.SearchStrategy[KeepRule] = st.one_of(
    st.just(KeepEverything()),
    st.builds(KeepLatest, st.integers(1, 5)),
    st.builds(KeepBest, st.integers(1, 5), st.sampled_from(["loss", "accuracy"]), st.sampled_from(["min", "max"])),
    st.builds(KeepEverySteps, st.integers(1, 20)),
)
_rules = st.recursive(
    _simple,
    lambda inner: st.builds(
        lambda a, b, both: holdfast.all_of(a, b) if both else holdfast.any_of(a, b), inner, inner, st.booleans()
    ),
    max_leaves=4,
)


@given(_checkpoints, _rules, st.sets(_refs, max_size=4))
def test_what_is_deleted_is_never_kept_pinned_or_protected(
    checkpoints: list[StoredCheckpoint], rule: KeepRule, protected: set[CheckpointRef]
) -> None:
    gone = superfluous(checkpoints, rule, protected=protected)
    by_ref = {c.ref: c for c in checkpoints}
    assert set(gone) <= set(by_ref)
    assert not set(gone) & (rule.keeps(checkpoints) | protected)
    assert not any(by_ref[ref].pinned for ref in gone)
    assert list(gone) == sorted(gone)


@given(_checkpoints, _rules, _rules)
def test_any_is_the_union_and_all_the_intersection(
    checkpoints: list[StoredCheckpoint], a: KeepRule, b: KeepRule
) -> None:
    assert holdfast.any_of(a, b).keeps(checkpoints) == a.keeps(checkpoints) | b.keeps(checkpoints)
    assert holdfast.all_of(a, b).keeps(checkpoints) == a.keeps(checkpoints) & b.keeps(checkpoints)


@given(_checkpoints, st.integers(1, 5), st.sampled_from(["min", "max"]))
def test_no_unrated_checkpoint_is_best_and_no_better_one_is_lost(
    checkpoints: list[StoredCheckpoint], count: int, mode: str
) -> None:
    rule = KeepBest(count, "loss", "min" if mode == "min" else "max")
    kept = rule.keeps(checkpoints)
    rated = {c.ref: c.metrics["loss"] for c in checkpoints if math.isfinite(c.metrics.get("loss", math.nan))}
    assert kept <= set(rated)
    assert len(kept) == min(count, len(rated))
    sign = 1 if mode == "min" else -1
    for ref in set(rated) - kept:
        assert all(sign * rated[ref] >= sign * rated[other] for other in kept)


@given(_checkpoints, st.integers(1, 5))
def test_latest_are_ordered_by_attempt_before_step(checkpoints: list[StoredCheckpoint], count: int) -> None:
    kept = KeepLatest(count).keeps(checkpoints)
    rest = {c.ref for c in checkpoints} - kept
    assert all((k.attempt, k.step) > (r.attempt, r.step) for k in kept for r in rest)


def test_the_spec_is_kept_by_any_of_its_fields() -> None:
    rule = keep_from({"latest": 3, "best": 1, "metric": "loss", "mode": "min", "everySteps": 10_000}, "keep")
    assert rule == holdfast.keep(latest=3, best=1, every_steps=10_000)
    assert rule.keeps([]) == frozenset()
    kept = rule.keeps(
        [StoredCheckpoint(CheckpointRef(1, s), {"loss": abs(s - 5.0)}) for s in (0, 5, 10, 11, 12, 20_000)]
    )
    assert sorted(r.step for r in kept) == [0, 5, 11, 12, 20_000]
    assert keep_from({"all": True}, "keep") == KeepEverything()
    assert KeptByAll(()).keeps([StoredCheckpoint(CheckpointRef(1, 1))]) == {CheckpointRef(1, 1)}


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"latest": 0}, "latest: found 0"),
        ({"latest": "3"}, "latest: found '3'"),
        ({"best": True, "metric": "loss"}, "best: found True"),
        ({"best": 1, "metric": "loss", "mode": "least"}, "mode: found 'least'"),
        ({"everySteps": -5}, "every_steps: found -5"),
        ({"newest": 3}, r"keep\.newest: unknown field"),
    ],
)
def test_a_wrong_spec_names_the_field(keep: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        keep_from(keep, "keep")
