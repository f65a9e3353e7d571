"""Who may write: one job per run, one process group per attempt, and never an older incarnation over a newer one."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.distributed.coordination import LocalCoordination
from holdfast.policies.keep_rules import KeepLatest
from holdfast.store import UNPINNED, Store
from holdfast.store.checkpoint_extras import CheckpointExtras
from holdfast.store.format import fs
from holdfast_contract.exits import ExitCode
from holdfast_contract.keys import OWNER_FILE
from holdfast_contract.manifest import CheckpointRef, Owner
from holdfast_contract.runfolder import OwnerRecordError, RunFolder
from tests.support.storage.states import QUICK, bits, small_state, store_at


def _claimed(root: Path, uid: str, attempt: int, *, take_over: bool = False) -> Store:
    owner = Owner(uid, "team", f"job-of-{uid}", attempt)
    store = Store(RunFolder(root), attempt=attempt, owner=owner, coordination=LocalCoordination(), settings=QUICK)
    store.claim(take_over=take_over)
    return store


def _saved(store: Store, step: int, seed: int) -> CheckpointRef:
    ref = store.save(step, small_state(seed)).result(30)
    store.close()
    return ref


def test_another_job_is_refused_and_changes_nothing(root: Path) -> None:
    _saved(_claimed(root, "a", 1), 1, 1)
    before = sorted(p.relative_to(root) for p in root.rglob("*"))
    with pytest.raises(errors.ForeignRun) as caught:
        _claimed(root, "b", 2)
    assert caught.value.exit_code is ExitCode.FOREIGN_RUN
    assert caught.value.recorded.job_uid == "a"
    assert "job-of-a" in str(caught.value)
    assert sorted(p.relative_to(root) for p in root.rglob("*")) == before


def test_a_job_made_again_takes_over_and_resumes(root: Path) -> None:
    _saved(_claimed(root, "a", 1), 4, 4)
    again = _claimed(root, "b", 2, take_over=True)
    restored = again.restore(UNPINNED, small_state(0))
    assert restored is not None
    assert (restored.ref.step, bits(restored.state)) == (4, bits(small_state(4)))
    owner = RunFolder(root).owner()
    assert owner is not None
    assert (owner.job_uid, owner.attempt) == ("b", 2)


def test_the_former_owner_can_save_nothing_any_more(root: Path) -> None:
    old = _claimed(root, "a", 1)
    old.save(1, small_state(1)).result(30)
    _claimed(root, "b", 2, take_over=True)
    with pytest.raises(errors.Superseded, match="taken over by team/job-of-b") as caught:
        old.save(2, small_state(2)).result(30)
    assert caught.value.exit_code is ExitCode.SUPERSEDED
    assert [r.step for r in RunFolder(root).candidates()] == [1]


def test_one_attempt_belongs_to_one_process_group(root: Path) -> None:
    _claimed(root, "a", 3)
    with pytest.raises(errors.Superseded, match="another process holds this attempt"):
        _claimed(root, "a", 3)
    with pytest.raises(errors.Superseded, match="attempt 3 has begun"):
        _claimed(root, "a", 2)


@pytest.mark.parametrize("operation", ["before:mkdir", "before:sync-file", "before:sync-folder"])
def test_a_stale_writer_cannot_commit_wherever_it_was_when_the_new_attempt_began(root: Path, operation: str) -> None:
    old = _claimed(root, "a", 1)
    old.save(1, small_state(1)).result(30)
    begun: list[Store] = []

    def overtake(found: str, _: Path) -> None:
        if found == operation and not begun:
            fs.set_fault_hook(None)
            begun.append(_claimed(root, "a", 2))

    fs.set_fault_hook(overtake)
    try:
        with pytest.raises(errors.Superseded, match="attempt 2 has begun"):
            old.save(2, small_state(2)).result(30)
    finally:
        fs.set_fault_hook(None)
    newest = _saved(begun[0], 2, 22)
    assert RunFolder(root).candidates() == (newest, CheckpointRef(1, 1))
    restored = _claimed(root, "a", 3).restore(UNPINNED, small_state(0))
    assert restored is not None
    assert bits(restored.state) == bits(small_state(22))


def test_a_stale_writer_past_its_last_check_finds_its_folder_gone(root: Path) -> None:
    old = _claimed(root, "a", 1)
    new: list[Store] = []

    def overtake(found: str, path: Path) -> None:
        if found == "before:rename" and path.name == "HOLDFAST.json" and not new:
            fs.set_fault_hook(None)
            new.append(_claimed(root, "a", 2))
            new[0].save(1, small_state(11)).result(30)
            new[0].close()

    fs.set_fault_hook(overtake)
    try:
        with pytest.raises(errors.Superseded):
            old.save(9, small_state(9)).result(30)
    finally:
        fs.set_fault_hook(None)
    assert [(r.attempt, r.step) for r in RunFolder(root).candidates()] == [(2, 1)]


def test_a_save_that_is_sealed_while_leftovers_are_swept_is_put_back(root: Path) -> None:
    old = _claimed(root, "a", 1)
    ref = old.save(1, small_state(1)).result(30)
    old.close()
    folder = RunFolder(root).step_folder(1, 1)
    assert not fs.discard_folder(folder, unless="HOLDFAST.json")
    assert RunFolder(root).candidates() == (ref,)


def test_a_stray_file_named_like_the_next_attempt_supersedes_nobody_and_is_named(root: Path) -> None:
    first = store_at(root, 1)
    (root / "2").write_text("left by another program")
    first.save(1, small_state(1)).result(30)
    first.close()
    with pytest.raises(errors.StorageUnusable, match=r"/2: .*found a file, allowed: nothing.*move or remove it"):
        store_at(root, 2)
    restored = store_at(root, RunFolder(root).highest_attempt() + 1).restore(UNPINNED, small_state(0))
    assert restored is not None
    assert restored.ref.step == 1
    assert RunFolder(root).attempts() == (1, 3)


def test_a_stale_writer_deletes_nothing(root: Path) -> None:
    old = store_at(root, 1, retention=KeepLatest(1))
    for step in (1, 2):
        old.save(step, small_state(step)).result(30)
    new = store_at(root, 2)
    new.save(3, small_state(3)).result(30)
    with pytest.raises(errors.Superseded):
        old.save(4, small_state(4)).result(30)
    old.close()
    assert [(r.attempt, r.step) for r in RunFolder(root).candidates()] == [(2, 3), (1, 2), (1, 1)]


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"job_uid": 3}'])
def test_an_owner_record_that_cannot_be_read_stops_everyone(root: Path, content: bytes) -> None:
    _claimed(root, "a", 1)
    (root / OWNER_FILE).write_bytes(content)
    with pytest.raises(OwnerRecordError, match=OWNER_FILE):
        RunFolder(root).owner()
    with pytest.raises(errors.StorageUnusable, match="not a readable owner record"):
        _claimed(root, "a", 2, take_over=True)


def test_retention_keeps_what_it_must_and_nothing_else(root: Path) -> None:
    losses = {1: 0.1, 2: 5.0, 3: 4.0, 4: float("nan"), 5: 3.0, 6: 9.0, 7: float("inf")}
    store = store_at(root, 1, retention=holdfast.keep(latest=2, best=1, every_steps=5))
    (root / "1" / "99").mkdir()  # not ours
    for step, loss in losses.items():
        store.save(step, small_state(step), CheckpointExtras(metrics={"loss": loss}, pinned=step == 3)).result(30)
    store.close()
    assert [r.step for r in RunFolder(root).candidates()] == [7, 6, 5, 3, 1]
    assert (root / "1" / "99").is_dir()
    for step in (2, 4):
        assert not (root / "1" / str(step)).exists()


def test_retention_never_takes_the_restored_one_nor_the_last_two_that_are_whole(root: Path) -> None:
    first = store_at(root, 1)
    for step in (1, 2, 3):
        first.save(step, small_state(step)).result(30)
    first.close()
    pin = RunFolder(root).candidates()[1]
    second = store_at(root, 2, retention=KeepLatest(1))
    assert second.restore(pin, small_state(0)) is not None
    for step in (10, 11, 12):
        second.save(step, small_state(step)).result(30)
        second.close()
        if step == 11:  # the newest but one loses its bytes: it does not count any more
            (root / "2" / "11" / "STRUCTURE.json").unlink()
    assert [(r.attempt, r.step) for r in RunFolder(root).candidates()] == [(2, 12), (2, 10), (1, 2)]
