"""Storage that fills up, and how long training has gone on: both seen across attempts."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast import errors
from holdfast.policies.keep_rules import KeepEverything, KeepLatest
from holdfast.store import UNPINNED, CheckpointExtras
from holdfast.store.format import fs
from holdfast.store.write import space
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import small_state, store_at


def _free(monkeypatch: pytest.MonkeyPatch, run: Path, total: int) -> None:
    """A file system with room for ``total`` bytes of this run."""

    def free_bytes(_: Path) -> int:
        return total - sum(p.stat().st_size for p in run.rglob("*") if p.is_file())

    monkeypatch.setattr(space, "free_bytes", free_bytes)


def test_what_no_rule_keeps_makes_room(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(root, 1, retention=KeepEverything())
    for step in range(1, 6):
        store.save(step, small_state(step)).result(30)
    store.close()
    one = sum(entry.size for entry in RunFolder(root).survey().found[0].manifest.files)
    _free(monkeypatch, root, int(5.8 * one))
    store = store_at(root, 2, retention=KeepLatest(2))
    with caplog.at_level(logging.WARNING, logger="holdfast.store"):
        store.save(6, small_state(6)).result(30)
        store.close()
    assert any("storage is getting full" in r.message and "are missing" in r.message for r in caplog.records)
    assert not any("no room" in r.message for r in caplog.records)
    assert [ref.step for ref in RunFolder(root).candidates()] == [6, 5]


def test_a_full_disk_says_what_is_missing_and_keeps_what_must_be_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(root, 1, retention=KeepLatest(1))
    for step in (1, 2):
        store.save(step, small_state(step), CheckpointExtras(pinned=step == 1)).result(30)
    _free(monkeypatch, root, 1)

    def full(point: str, path: Path) -> None:
        if point == "before:write" and path.name == "STRUCTURE.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    fs.set_fault_hook(full)
    try:
        with pytest.raises(errors.SaveError, match="are missing, and nothing is left to delete") as caught:
            store.save(3, small_state(3)).result(30)
    finally:
        fs.set_fault_hook(None)
    assert caught.value.errno == errno.ENOSPC
    assert any("no room for the next checkpoint" in r.message for r in caplog.records)
    assert [ref.step for ref in RunFolder(root).candidates()] == [2, 1]
    store.close()


def test_room_is_that_of_the_file_system(tmp_path: Path) -> None:
    found = space.room(RunFolder(tmp_path), 1000)
    status = os.statvfs(tmp_path)
    assert found.needed_bytes == 1000
    assert abs(found.free_bytes - status.f_bavail * status.f_frsize) < 1 << 30
    assert str(space.Room(10, 25)) == "10 bytes are free and a checkpoint needs about 25: 15 are missing"
    assert (space.Room(10, 25).is_short, space.Room(30, 25).is_short) == (True, False)
    assert (space.Room(74, 25).is_getting_short, space.Room(75, 25).is_getting_short) == (True, False)


def test_elapsed_seconds_go_on_over_attempts_without_the_time_between(root: Path) -> None:
    def elapsed(attempt: int, step: int) -> float:
        (found,) = [f for f in RunFolder(root).survey().found if (f.ref.attempt, f.ref.step) == (attempt, step)]
        assert found.manifest.elapsed_seconds is not None
        return found.manifest.elapsed_seconds

    began = time.monotonic()
    first = store_at(root, 1)
    first.save(1, small_state(1)).result(30)
    first.close()
    ended = time.monotonic()
    first_elapsed = elapsed(1, 1)
    assert 0 < first_elapsed <= ended - began
    resumed = time.monotonic()
    second = store_at(root, 2)
    assert second.restore(UNPINNED, small_state(0)) is not None
    second.save(2, small_state(2)).result(30)
    second.close()
    assert first_elapsed <= elapsed(2, 2) <= first_elapsed + time.monotonic() - resumed
    assert np.isfinite(elapsed(2, 2))


def test_a_checkpoint_refused_on_restore_does_not_stand_in_for_a_valid_one(root: Path) -> None:
    store = store_at(root, 1)
    for step in (1, 2, 3):
        store.save(step, small_state(step)).result(30)
    store.close()
    for step in (2, 3):
        data = max((p for p in (root / "1" / str(step)).rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        content = bytearray(data.read_bytes())
        content[-3] ^= 1
        data.write_bytes(content)
    store = store_at(root, 2, retention=KeepLatest(1))
    restored = store.restore(UNPINNED, small_state(0))
    assert restored is not None
    assert (restored.ref.step, len(restored.rejected)) == (1, 2)
    store.save(4, small_state(4)).result(30)
    store.close()
    assert {(r.attempt, r.step) for r in RunFolder(root).candidates()} == {(2, 4), (1, 1)}
