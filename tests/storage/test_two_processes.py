"""Two JAX processes save and restore together: one verdict for both, whatever happens to one of them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp
import pytest

from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import flip_bit
from tests.support.storage.world import World

TASKS = "tests.support.storage.tasks"


def test_every_kind_of_leaf_and_each_ranks_data_come_back_bit_for_bit(world: World, root: Path) -> None:
    saved = world.call(f"{TASKS}:save_steps", root, 1, [3, 5])
    assert saved[0] == saved[1]
    restored = world.call(f"{TASKS}:restore", root, 2)
    for rank, told in enumerate(restored):
        assert told["ref"] == saved[0]["refs"][1]
        assert told["equal"]
        assert told["shardings"]
        assert told["data"] == f"rank {rank} step 5".encode()
        assert told["rejected"] == ()


def test_two_processes_continue_to_the_bit_with_weak_types(world: World, root: Path) -> None:
    for attempt in range(1, 5):
        for told in world.call(f"{TASKS}:continue_one_step", root, attempt):
            assert told["types"] == [("float32", True), ("int32", True), ("float32", True), ("bfloat16", False)]
            assert told["equal"]


def test_a_background_save_needs_no_collective_and_survives_those_of_the_main_thread(world: World, root: Path) -> None:
    told = world.call(f"{TASKS}:train_while_saving", root, 4)
    assert [t["ref"].step for t in told] == [4, 4]
    assert all(t["equal"] for t in told), "donation by later steps reached into a snapshot"
    assert told[0]["during"] > 0, "no step ran during a save: the test shows nothing"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("operation", ["before:write", "before:sync-file"])
def test_a_full_disk_on_one_rank_fails_the_save_on_both_with_the_culprit(
    world: World, root: Path, rank: int, operation: str
) -> None:
    told = world.call(f"{TASKS}:save_with_fault", root, rank, operation, errno.ENOSPC)
    for each in told:
        assert each["error"] == "SaveError"
        assert (each["rank"], each["errno"], each["step"]) == (rank, errno.ENOSPC, 2)
        assert each["path"].startswith(str(root / "1" / "2"))
    assert [ref.step for ref in RunFolder(root).candidates()] == [3, 1]
    assert not (root / "1" / "2").exists(), "leftovers of the failed save"


def test_a_rank_whose_storage_hangs_fails_the_save_everywhere_in_time(world: World, root: Path) -> None:
    told = world.call(f"{TASKS}:save_with_late_rank", root, 1)
    assert [each["error"] for each in told] == ["SaveTimeout", "SaveTimeout"]
    assert [each["rank"] for each in told] == [1, 1]
    assert RunFolder(root).candidates() == ()


def test_a_number_that_differs_between_ranks_is_refused_by_name(world: World, root: Path) -> None:
    told = world.call(f"{TASKS}:save_differing_leaf", root)
    for each in told:
        assert "['step']" in each["error"]
        assert each["rank"] == 1


def test_a_damaged_file_is_refused_by_both_whoever_finds_it(world: World, root: Path, tmp_path: Path) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [1, 2])
    newest = RunFolder(root).survey().found[0]
    # The two largest files go to different ranks, so both get to be the one that finds out.
    entries = sorted(newest.manifest.files, key=lambda e: -e.size)[:2]
    for number, entry in enumerate(entries):
        copy = tmp_path / f"copy-{number}" / root.name
        shutil.copytree(root, copy)
        flip_bit(copy / "1" / "2" / entry.path)
        told = world.call(f"{TASKS}:restore", copy, 2)
        assert told[0]["rejected"] == told[1]["rejected"]
        for each in told:
            assert each["ref"].step == 1
            assert each["equal"]
            assert entry.path in each["rejected"][0].reason


def test_an_error_that_passes_is_no_refusal(world: World, root: Path) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [1, 2])
    told = world.call(f"{TASKS}:restore_with_fault", root, errno.EIO, 2)
    assert [each["ref"].step for each in told] == [2, 2]
    assert [each["rejected"] for each in told] == [(), ()]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_storage_that_does_not_answer_ends_the_restore_instead_of_losing_work(
    world: World, root: Path, number: int
) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [1, 2])
    told = world.call(f"{TASKS}:restore_with_fault", root, number, 10_000)
    for each in told:
        assert each["errno"] == number
        assert "process 1" in each["error"]


def test_a_mismatch_on_one_rank_ends_both_with_leaf_and_remedy(world: World, root: Path) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [1])
    for each in world.call(f"{TASKS}:restore_other_shape", root):
        assert each["leaf"] == "['table']"
        assert "[3]" in each["expected"]
        assert "[7]" in each["found"]


def test_folders_that_are_not_shared_are_found_before_the_first_step(world: World, tmp_path: Path) -> None:
    roots = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for path in roots:
        path.parent.mkdir()
    for each in world.call(f"{TASKS}:claim_separately", roots):
        assert "process 1" in each["error"]
        assert "shared volume" in each["error"]


def test_what_was_not_committed_to_a_device_can_be_mixed_with_sharded_arrays_after_a_restore(
    world: World, root: Path
) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [2])
    assert world.call(f"{TASKS}:step_after_restore", root) == [3, 3]


def test_plain_orbax_reads_it_in_another_world(world: World, root: Path) -> None:
    world.call(f"{TASKS}:save_steps", root, 1, [4])
    assert (root / "1" / "4" / MANIFEST_FILE).is_file()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    reader = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    restored = reader.restore(root / "1" / "4" / "state", args=ocp.args.StandardRestore(fallback_sharding=here))
    assert restored["params"]["w"].tolist() == [[float(8 * r + c + 4) for c in range(8)] for r in range(8)]
    assert jax.random.key_data(restored["key"]).tolist() == jax.random.key_data(jax.random.key(4)).tolist()
