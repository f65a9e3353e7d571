"""Whatever is kept and however little room there is: a warning in time, then only what no rule keeps, then what is missing."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.policies.keep_rules import (
    KeepBest,
    KeepEverySteps,
    KeepEverything,
    KeepLatest,
    KeepRule,
    KeepSteps,
    StoredCheckpoint,
)
from holdfast.store import CheckpointExtras
from holdfast.store.write import space
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import small_state, store_at

SAVE_SECONDS = 30.0
EARLY_CHECKPOINTS = 3
LOSSES = [3.0, 1.0, 2.0, float("nan")]

rules = st.recursive(
    st.one_of(
        st.builds(KeepLatest, st.integers(1, 4)),
        st.builds(KeepEverySteps, st.integers(1, 3)),
        st.builds(KeepSteps, st.frozensets(st.integers(1, 4), max_size=2).map(tuple)),
        st.builds(KeepBest, st.integers(1, 2)),
    ),
    lambda inner: st.builds(
        lambda a, b, both: holdfast.all_of(a, b) if both else holdfast.any_of(a, b), inner, inner, st.booleans()
    ),
    max_leaves=3,
)


class Disk:
    """A file system with room for so many bytes of one run; remembers which steps were there when it was asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.total = root, 0
        self.asked: list[list[int]] = []
        self.free: list[int] = []

    @property
    def used(self) -> int:
        return sum(p.stat().st_size for p in self.root.rglob("*") if p.is_file())

    def free_bytes(self, _: Path) -> int:
        self.asked.append(steps_of(self.root))
        self.free.append(self.total - self.used)
        return self.free[-1]


def steps_of(root: Path) -> list[int]:
    return sorted(ref.step for ref in RunFolder(root).candidates())


@settings(max_examples=25, deadline=None)
@given(rule=rules, count=st.integers(2, 4), free_checkpoints=st.floats(-1, 4), pinned=st.integers(1, 4))
def test_room_is_made_of_what_no_rule_keeps_and_of_nothing_else(
    rule: KeepRule, count: int, free_checkpoints: float, pinned: int
) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "run"
        first = store_at(root, 1, retention=KeepEverything())
        for step in range(1, count + 1):
            request = CheckpointExtras(metrics={"loss": LOSSES[step - 1]}, pinned=step == pinned)
            first.save(step, small_state(step), request).result(SAVE_SECONDS)
        first.close()
        there = [StoredCheckpoint(f.ref, f.manifest.metrics, f.manifest.pinned) for f in RunFolder(root).survey().found]
        newest_two = {c.ref.step for c in there if c.ref.step > count - 2}
        must_stay = {ref.step for ref in rule.keeps(there)} | newest_two | {c.ref.step for c in there if c.pinned}
        disk = Disk(root)
        store = store_at(root, 2, retention=rule)
        # Read before the limit is known, so that the limit is in checkpoints.
        needed = space.room(RunFolder(root), 0).needed_bytes
        disk.total = disk.used + int(free_checkpoints * needed)
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("holdfast.store")
        logger.addHandler(handler)
        try:
            with mock.patch.object(space, "free_bytes", disk.free_bytes):
                store.save(count + 1, small_state(count + 1)).result(SAVE_SECONDS)
                store.close()
        finally:
            logger.removeHandler(handler)
    assert disk.asked[0] == list(range(1, count + 1))
    assert any("storage is getting full" in text for text in said) == (disk.free[0] < EARLY_CHECKPOINTS * needed)
    short = disk.free[0] < needed
    assert len(disk.asked) == (2 if short else 1), "nothing is deleted for room while there is room"
    if short:
        assert set(disk.asked[1]) == must_stay
    lacking = any("no room for the next checkpoint" in text for text in said)
    assert lacking == (disk.free[-1] < needed)
    if lacking:
        assert any(f"{needed - disk.free[-1]:,} are missing" in text for text in said)
