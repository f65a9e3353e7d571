"""Files that one machine's cache shows late or short: a restore of several ranks waits for them, and damage stays damage."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.distributed.coordination import LocalCoordination
from holdfast.state.structure import STRUCTURE_FILE
from holdfast.store import UNPINNED
from holdfast.store.read.restore import Restore
from holdfast.store.read.restored import Restored
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.ranks import Rank
from tests.support.storage.states import QUICK, bits, small_state, store_at

PATIENT = replace(QUICK, visible_seconds=20)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Attempt 1 committed steps 1 and 2."""
    root = tmp_path / "char-lm"
    store = store_at(root, 1)
    for step in (1, 2):
        store.save(step, small_state(step)).result(30)
    store.close()
    return root


def _restores(root: Path, settings: object = QUICK) -> list[Future[Restored | None]]:
    shared, pool = LocalCoordination(), ThreadPoolExecutor(2)
    ranks = [Restore(RunFolder(root), Rank(shared, rank), settings, 1, 2) for rank in (0, 1)]  # type: ignore[arg-type]
    return [pool.submit(restore.run, UNPINNED, small_state(0)) for restore in ranks]


def _largest(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.parametrize("file", ["array data", "structure"])
@pytest.mark.parametrize("shown", ["nothing", "no bytes", "half of its bytes"])
def test_a_file_that_shows_late_or_short_is_waited_for(run: Path, file: str, shown: str) -> None:
    step = run / "1" / "2"
    late = _largest(step) if file == "array data" else step / STRUCTURE_FILE
    content = late.read_bytes()
    if shown == "nothing":
        late.unlink()
    else:
        os.truncate(late, len(content) // 2 if shown == "half of its bytes" else 0)
    restores = _restores(run, PATIENT)
    for restore in restores:
        with pytest.raises(TimeoutError):
            restore.result(0.3)
    late.write_bytes(content)
    for restore in restores:
        restored = restore.result(30)
        assert restored is not None
        assert (restored.ref.step, restored.rejected) == (2, ())
        assert bits(restored.state) == bits(small_state(2))


def test_a_file_that_stays_short_is_damage(run: Path) -> None:
    os.truncate(_largest(run / "1" / "2"), 7)
    for restore in _restores(run):
        restored = restore.result(30)
        assert restored is not None
        assert [r.step for r in restored.rejected] == [2]
        assert "found 7" in restored.rejected[0].reason
        assert bits(restored.state) == bits(small_state(1))
