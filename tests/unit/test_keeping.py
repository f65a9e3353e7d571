"""What is kept: values from the program to the rule, and the rule on folders of manifests."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.policies.keep_rules import (
    KeepBest,
    KeepEverySeconds,
    KeepEverySteps,
    KeepEverything,
    KeepLatest,
    KeepRule,
    KeepSteps,
    KeptByAll,
    KeptByAny,
    StoredCheckpoint,
    require_keep_rule,
)
from holdfast.store.claim import RunClaim
from holdfast.store.sweep import apply_retention
from holdfast_contract import codec, manifest
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.manifest import CheckpointRef, FileEntry, Manifest, Owner
from holdfast_contract.runfolder import RunFolder

_OWNER = Owner("uid", "", "", 9)
_refs = st.builds(CheckpointRef, st.integers(1, 3), st.integers(0, 12))
_elapsed = st.one_of(st.none(), st.floats(0, 500, allow_nan=False))
_timed = st.lists(
    st.builds(StoredCheckpoint, _refs, st.just({}), st.just(False), _elapsed),
    unique_by=lambda c: c.ref,
    min_size=1,
    max_size=20,
)


@contextmanager
def _run_of(checkpoints: list[StoredCheckpoint], broken: set[CheckpointRef]) -> Iterator[RunClaim]:
    """A run's folder with the manifests of these, each with one file, which is cut short for ``broken``."""
    with tempfile.TemporaryDirectory() as made:
        folder = RunFolder(Path(made) / "run")
        for kept in checkpoints:
            step = folder.step_folder(kept.ref.attempt, kept.ref.step)
            step.mkdir(parents=True)
            (step / "file").write_bytes(b"1" if kept.ref in broken else b"1234")
            (step / MANIFEST_FILE).write_bytes(
                manifest.to_bytes(
                    Manifest(
                        format=manifest.FORMAT,
                        run="run",
                        job_uid="uid",
                        attempt=kept.ref.attempt,
                        step=kept.ref.step,
                        process_count=1,
                        device_kind="",
                        tree_digest="",
                        parent="",
                        files=(FileEntry("file", 4, "0" * 32),),
                        metrics={k: v for k, v in kept.metrics.items() if math.isfinite(v)},
                        pinned=kept.pinned,
                        elapsed_seconds=kept.elapsed_seconds,
                    )
                )
            )
        folder.root.mkdir(exist_ok=True)
        folder.owner_file.write_bytes(codec.encode(_OWNER))
        yield RunClaim(folder, 9, _OWNER)


_checkpoints = st.lists(
    st.builds(
        StoredCheckpoint,
        _refs,
        st.dictionaries(st.just("loss"), st.floats(allow_nan=True, allow_infinity=True)),
        st.booleans(),
        _elapsed,
    ),
    unique_by=lambda c: c.ref,
    max_size=12,
)
_rules = st.recursive(
    st.one_of(
        st.builds(KeepLatest, st.integers(1, 3)),
        st.builds(KeepBest, st.integers(1, 3)),
        st.builds(KeepEverySteps, st.integers(1, 6)),
        st.builds(KeepEverySeconds, st.floats(1, 200)),
        st.builds(KeepSteps, st.frozensets(st.integers(0, 12), max_size=3).map(tuple)),
        st.just(KeepEverything()),
    ),
    lambda inner: st.one_of(
        st.builds(KeptByAny, st.tuples(inner, inner)),
        st.builds(KeptByAll, st.tuples(inner, inner)),
        st.just(KeptByAny(())),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(_checkpoints, _rules, st.data())
def test_on_storage_never_the_pin_and_never_fewer_than_two_valid_ones(
    checkpoints: list[StoredCheckpoint], rule: KeepRule, data: st.DataObject
) -> None:
    refs = [c.ref for c in checkpoints]
    some = st.sets(st.sampled_from(refs)) if refs else st.just(set())
    pins, broken, damaged = data.draw(some), data.draw(some), data.draw(some)
    with _run_of(checkpoints, broken) as claim:
        removed = apply_retention(claim, rule, protected=pins, damaged=damaged)
        left = set(claim.folder.candidates())
    assert left == set(refs) - set(removed)
    assert not set(removed) & pins
    assert not {c.ref for c in checkpoints if c.pinned} & set(removed)
    assert set(removed) == set(removed) - rule.keeps(checkpoints)
    valid = sorted(set(refs) - broken - damaged, reverse=True)
    assert set(valid[:2]) <= left, "the newest two that are valid always stay"
    kept_for_a_reason = rule.keeps(checkpoints) | pins | {c.ref for c in checkpoints if c.pinned} | set(valid[:2])
    assert left <= kept_for_a_reason, "what nothing keeps is gone"


@given(_timed, st.floats(1, 200))
def test_every_interval_of_training_keeps_one_checkpoint_and_only_one(
    checkpoints: list[StoredCheckpoint], seconds: float
) -> None:
    kept = KeepEverySeconds(seconds).keeps(checkpoints)
    known = {c.ref: c.elapsed_seconds for c in checkpoints if c.elapsed_seconds is not None}
    assert kept <= set(known)
    intervals = [math.floor(known[ref] / seconds) for ref in kept]
    assert sorted(intervals) == sorted({math.floor(elapsed / seconds) for elapsed in known.values()})


@given(_timed, st.floats(1, 200), st.floats(0, 300))
def test_a_further_checkpoint_of_the_newest_attempt_takes_no_older_one_of_it_away(
    checkpoints: list[StoredCheckpoint], seconds: float, later: float
) -> None:
    newest = max(c.ref for c in checkpoints)
    base = max((c.elapsed_seconds or 0.0) for c in checkpoints)
    added = StoredCheckpoint(CheckpointRef(newest.attempt, newest.step + 1), elapsed_seconds=base + later)
    before, after = KeepEverySeconds(seconds).keeps(checkpoints), KeepEverySeconds(seconds).keeps([*checkpoints, added])
    assert {ref for ref in before if ref.attempt == newest.attempt} <= after


def test_values_become_the_rules_they_name() -> None:
    assert holdfast.keep() == KeptByAny((KeepLatest(3),))
    assert holdfast.keep_all() == KeepEverything()
    every = holdfast.keep(latest=None, best=2, metric="acc", mode="max", every_steps=10, every_seconds=60.0, steps=(7,))
    each = (KeepBest(2, "acc", "max"), KeepEverySteps(10), KeepEverySeconds(60.0), KeepSteps((7,)))
    assert every == KeptByAny(each)
    newest, tenth = holdfast.keep(latest=20), holdfast.keep(latest=None, every_steps=10)
    assert holdfast.all_of(newest, tenth) == KeptByAll((newest, tenth))
    either = holdfast.any_of(holdfast.all_of(newest, tenth), holdfast.keep(latest=2))
    kept = either.keeps([StoredCheckpoint(CheckpointRef(1, step)) for step in range(40)])
    assert sorted(ref.step for ref in kept) == [20, 30, 38, 39]


def test_rules_of_two_kinds_do_not_combine() -> None:
    with pytest.raises(TypeError, match="rules of one kind"):
        holdfast.any_of(holdfast.keep(), holdfast.every_steps(3))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="no rule"):
        holdfast.all_of()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"latest": None}, "found no rule"),
        ({"latest": 0}, "latest: found 0"),
        ({"every_seconds": 0}, "every_seconds: found 0"),
        ({"every_seconds": math.inf}, "every_seconds: found inf"),
        ({"steps": (-1,)}, "steps: found -1"),
        ({"steps": ("3",)}, "steps: found '3'"),
        ({"best": -1}, "keep.best: found -1, allowed: a whole number of 0 or more"),
        ({"metric": ""}, "keep.metric: found '', allowed: the name of a metric given to commit"),
        ({"mode": "least"}, "keep.mode: found 'least', allowed: 'min' or 'max'"),
    ],
)
def test_a_wrong_value_names_the_field(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        holdfast.keep(**arguments)


def test_what_is_no_keep_rule_is_refused_by_name() -> None:
    for rule in (holdfast.keep(), holdfast.keep_all(), holdfast.all_of(holdfast.keep(), holdfast.keep_all())):
        require_keep_rule("keep", rule)
    with pytest.raises(TypeError, match=r"keep: found 3, allowed: what keep\(\), keep_all\(\)"):
        require_keep_rule("keep", 3)
