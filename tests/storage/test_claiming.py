"""Claiming a run with several ranks: the same world, the same storage, each rank once; and who is told what if not."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.distributed.coordination import LocalCoordination
from holdfast.errors import WrongWorld
from holdfast.store.claim import RunClaim, claim_run
from holdfast.store.store_settings import StoreSettings
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.ranks import Rank

LIMITS = StoreSettings(claim_seconds=20, visible_seconds=3)


def claim_of(root: Path, *, attempt: int = 3, uid: str = "a") -> RunClaim:
    return RunClaim(RunFolder(root), attempt, Owner(uid, "team", f"job-{uid}", attempt))


class World:
    """Two ranks that claim at the same time, each as it likes."""

    def __init__(self) -> None:
        self.shared = LocalCoordination()
        self._pool = ThreadPoolExecutor(4)

    def claims(self, rank: int, claim: RunClaim, limits: StoreSettings = LIMITS) -> Future[None]:
        return self._pool.submit(claim_run, claim, Rank(self.shared, rank), take_over=False, settings=limits)


def test_ranks_that_come_at_different_times_claim_together(tmp_path: Path) -> None:
    world = World()
    late = world.claims(1, claim_of(tmp_path / "run"))
    with pytest.raises(TimeoutError):
        late.result(0.2)
    world.claims(0, claim_of(tmp_path / "run")).result(20)
    late.result(20)
    assert [p.name for p in (tmp_path / "run" / "3").iterdir() if p.name.startswith(".probe")] == []


def test_a_file_that_shows_late_is_waited_for(tmp_path: Path) -> None:
    """Another machine's cache shows the old content, or nothing, for a while."""
    world, root = World(), tmp_path / "run"
    first = world.claims(0, claim_of(root))
    probe = root / "3" / ".probe-0"
    while not probe.exists() or not world.shared.try_get("store/claim/prove/vote/0"):
        assert not first.done()
    content = probe.read_bytes()
    probe.write_bytes(b"what was there before")
    second = world.claims(1, claim_of(root))
    with pytest.raises(TimeoutError):
        second.result(0.2)
    os.truncate(probe, 0)
    with pytest.raises(TimeoutError):
        second.result(0.2)
    probe.unlink()
    with pytest.raises(TimeoutError):
        second.result(0.2)
    probe.write_bytes(content)
    first.result(20)
    second.result(20)


def test_a_rank_on_other_storage_is_told_what_it_does_not_see(tmp_path: Path) -> None:
    world = World()
    (tmp_path / "other").mkdir()
    first = world.claims(0, claim_of(tmp_path / "run"))
    other = world.claims(1, claim_of(tmp_path / "other" / "run"))
    for result in (first, other):
        with pytest.raises(errors.StorageUnusable, match="process 1 does not see what process 0 wrote there") as caught:
            result.result(20)
        assert "within 3 s: no such file, the run's folder does not exist" in str(caught.value)
        assert caught.value.exit_code is ExitCode.STORAGE


@pytest.mark.parametrize("stranger", [{"uid": "b"}, {"attempt": 4}])
def test_a_rank_of_another_world_says_so_and_disturbs_nobody(tmp_path: Path, stranger: dict[str, object]) -> None:
    """Two jobs on one machine's network may come to share an address; the coordinator knows only numbers."""
    world, root = World(), tmp_path / "run"
    first = world.claims(0, claim_of(root))
    with pytest.raises(
        WrongWorld, match="but the coordinator that it has joined serves attempt 3 of run 'run'"
    ) as caught:
        world.claims(1, claim_of(root, **stranger)).result(20)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.PEER_LOST
    assert not first.done()
    world.claims(1, claim_of(root)).result(20)
    first.result(20)


def test_a_second_process_of_a_rank_is_turned_away(tmp_path: Path) -> None:
    world, root = World(), tmp_path / "run"
    first, second = world.claims(0, claim_of(root)), world.claims(1, claim_of(root))
    first.result(20)
    second.result(20)
    with pytest.raises(errors.Superseded, match="another process takes part as process 1"):
        world.claims(1, claim_of(root)).result(20)
