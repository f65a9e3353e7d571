"""Checkpoints of plain Orbax, sealed: the manager still works with them, and damage that it would accept is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1 as orbax_v1

import holdfast
from holdfast import errors
from holdfast.catalog import diff as comparing
from holdfast.cli import main
from holdfast.store.format import fs
from holdfast_contract.keys import MANIFEST_FILE
from tests.support.storage.states import bits, flip_bit, store_at


def _state(seed: int) -> dict[str, Any]:
    return {"params": {"w": jnp.arange(4096.0).reshape(64, 64) + seed}, "opt": [jnp.full(3, seed), (jnp.zeros(2),)]}


def _manager(root: Path, **options: Any) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**options))


def _save(manager: ocp.CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(step, args=ocp.args.StandardSave(_state(step)))
    manager.wait_until_finished()


def _restored(root: Path, step: int) -> Any:
    with _manager(root) as manager:
        return manager.restore(step, args=ocp.args.StandardRestore(_state(0)))


def _flip_array_bit(folder: Path, step: int) -> Path:
    """One bit of a number, in a place where plain Orbax reads it."""
    needle = np.asarray(_state(step)["params"]["w"]).tobytes()
    [data] = [p for p in folder.rglob("*") if p.is_file() and needle in p.read_bytes()]
    flip_bit(data, byte=data.read_bytes().index(needle) + 6)
    return data


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1, 2 and 3 of a manager that does not compress, none sealed."""
    root = tmp_path_factory.mktemp("saved") / "mine"
    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    with ocp.CheckpointManager(root, item_handlers=handler) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=ocp.args.PyTreeSave(_state(step)))
    return root


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "mine")
    return tmp_path / "mine"


pytestmark = pytest.mark.usefixtures("no_fault_left")


def test_a_sealed_step_is_verified_and_still_restored_by_its_manager(root: Path) -> None:
    assert [ref.step for ref in holdfast.seal(root)] == [1, 2, 3]
    assert holdfast.seal(root) == (), "sealed once"
    assert holdfast.newest_sealed(root) == 3
    assert holdfast.verify_sealed(root, 3).step == 3
    restored = ocp.CheckpointManager(root, item_handlers=ocp.PyTreeCheckpointHandler()).restore(3)
    assert np.array_equal(restored["params"]["w"], _state(3)["params"]["w"])
    loaded = orbax_v1.load_checkpointables(root / "3")["default"]
    assert np.array_equal(loaded["params"]["w"], _state(3)["params"]["w"])


def test_a_flipped_bit_that_orbax_accepts_is_refused(root: Path) -> None:
    holdfast.seal(root)
    damaged = _flip_array_bit(root / "3", 3)
    with ocp.CheckpointManager(root, item_handlers=ocp.PyTreeCheckpointHandler()) as manager:
        accepted = manager.restore(3)
    assert not np.array_equal(accepted["params"]["w"], _state(3)["params"]["w"]), "Orbax took it without a word"
    with pytest.raises(errors.DamagedCheckpoint, match=damaged.name):
        holdfast.verify_sealed(root, 3)
    assert holdfast.newest_sealed(root) == 2
    for step in (1, 2):
        _flip_array_bit(root / str(step), step)
    with pytest.raises(errors.NoValidCheckpoint) as caught:
        holdfast.newest_sealed(root)
    assert [r.step for r in caught.value.rejected] == [3, 2, 1]


def test_the_managers_retention_takes_the_manifest_along(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    with _manager(root, max_to_keep=2) as manager:
        for step in (1, 2, 3, 4):
            _save(manager, step)
            assert [ref.step for ref in holdfast.seal(root, step)] == [step]
        assert sorted(p.name for p in root.iterdir()) == ["3", "4"]
        assert manager.all_steps() == [3, 4]
    assert [(c.step, c.status) for c in holdfast.checkpoints(root)] == [(4, "valid"), (3, "valid")]
    assert np.array_equal(_restored(root, 4)["params"]["w"], _state(4)["params"]["w"])


def test_a_callback_of_the_manager_seals_without_a_change_of_the_loop(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    after_each = ocp.options.AsyncOptions(post_finalization_callback=lambda: holdfast.seal(root))
    with _manager(root, max_to_keep=3, async_options=after_each) as manager:
        _save(manager, 1, 2, 3)
    sealed = [c.step for c in holdfast.checkpoints(root)]
    assert sealed == [2, 1], "the callback of a save comes just before its folder has its name"
    holdfast.seal(root)
    assert holdfast.newest_sealed(root) == 3


def test_checkpoints_of_the_second_generation(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    with orbax_v1.training.Checkpointer(root) as checkpointer:
        checkpointer.save(7, _state(7))
        response = checkpointer.save_async(8, _state(8))
        response.result()
        assert [ref.step for ref in holdfast.seal(root)] == [7, 8]
        assert holdfast.newest_sealed(root) == 8
        loaded = checkpointer.load(8)
        assert np.array_equal(loaded["params"]["w"], _state(8)["params"]["w"])
        assert checkpointer.latest.step == 8
    flip_bit(max((p for p in (root / "8").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size))
    assert holdfast.newest_sealed(root) == 7


def test_steps_with_a_prefix(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    names = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=6)
    with _manager(root, step_name_format=names) as manager:
        _save(manager, 5)
    assert (root / "step_000005").is_dir()
    assert holdfast.seal(root, 5)[0].step == 5
    assert holdfast.newest_sealed(root) == 5


@pytest.mark.parametrize("missing", ["commit_success.txt", "_CHECKPOINT_METADATA"])
def test_what_is_not_finished_is_not_sealed(root: Path, missing: str) -> None:
    (root / "3" / missing).unlink()
    (root / "9").mkdir()  # an empty folder is the newest checkpoint to Orbax
    (root / "11.orbax-checkpoint-tmp").mkdir()
    for step in (3, 9, 11):
        with pytest.raises(errors.NotFinished):
            holdfast.seal(root, step)
    assert [ref.step for ref in holdfast.seal(root)] == [1, 2]
    assert holdfast.newest_sealed(root) == 2


def test_metrics_are_noted_and_only_finite_ones(root: Path) -> None:
    holdfast.seal(root, 2, metrics={"loss": 0.5, "bad": float("nan")})
    assert holdfast.checkpoints(root)[0].metrics == {"loss": 0.5}
    with pytest.raises(ValueError, match="metrics"):
        holdfast.seal(root, metrics={"loss": 0.5})


def test_a_seal_of_another_step_or_run_is_refused(root: Path) -> None:
    holdfast.seal(root)
    shutil.rmtree(root / "3")
    shutil.copytree(root / "2", root / "3")
    with pytest.raises(errors.DamagedCheckpoint, match="step"):
        holdfast.verify_sealed(root, 3)
    assert holdfast.newest_sealed(root) == 2
    with pytest.raises(errors.NotFinished, match="trusted"):
        holdfast.seal(root, 3)


def test_nothing_sealed_is_nothing_to_restore(root: Path, tmp_path: Path) -> None:
    assert holdfast.newest_sealed(root) is None
    assert holdfast.newest_sealed(tmp_path / "nowhere") is None
    with pytest.raises(errors.DamagedCheckpoint, match="not sealed"):
        holdfast.verify_sealed(root, 3)


def test_a_step_deleted_while_it_is_sealed_is_left_out(root: Path) -> None:
    def delete(point: str, path: Path) -> None:
        if point == "before:sync-file" and path.is_relative_to(root / "1"):
            fs.set_fault_hook(None)
            shutil.rmtree(root / "1")

    fs.set_fault_hook(delete)
    assert [ref.step for ref in holdfast.seal(root)] == [2, 3]


def test_a_step_behind_a_symbolic_link_is_named_by_every_command(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root.joinpath("3").rename(tmp_path / "elsewhere")
    (root / "3").symlink_to(tmp_path / "elsewhere")
    assert [ref.step for ref in holdfast.seal(root)] == [1, 2]
    assert f"{root / '3'} is not sealed: the step's folder is a symbolic link" in caplog.text
    with pytest.raises(errors.NotFinished, match="symbolic link"):
        holdfast.seal(root, 3)
    assert main(["checkpoints", "ls", str(root)]) == 0
    assert f"not a checkpoint, because it has no manifest: {root / '3'}" in capsys.readouterr().out
    shutil.copyfile(root / "2" / MANIFEST_FILE, tmp_path / "elsewhere" / MANIFEST_FILE)
    for path in (root, root / "3"):
        assert main(["checkpoints", "verify", str(path)]) == 1
        assert capsys.readouterr().out.startswith("mine step 3: damaged: the step's folder is a symbolic link")
    assert holdfast.newest_sealed(root) == 2
    assert "step 3 is refused: the step's folder is a symbolic link" in caplog.text
    with pytest.raises(errors.DamagedCheckpoint, match="symbolic link"):
        holdfast.verify_sealed(root, 3)


def test_a_sealing_that_was_cut_off_is_done_again(root: Path) -> None:
    """At every operation on the manifest, by its place among those: how many files come before, Orbax decides."""

    class Killed(BaseException): ...

    met: list[str] = []

    def hook(point: str, path: Path) -> None:
        operation = f"{point} {path.name}"
        if "manifest" in operation.lower() or MANIFEST_FILE in operation or ":rename" in operation:
            met.append(operation)
            if len(met) == deadly:
                raise Killed

    deadly = 0
    fs.set_fault_hook(hook)
    holdfast.seal(root, 1)
    operations = len(met)
    assert operations >= 2
    for number in range(1, operations + 1):
        (root / "2" / MANIFEST_FILE).unlink(missing_ok=True)
        met.clear()
        deadly = number
        fs.set_fault_hook(hook)
        with pytest.raises(Killed):
            holdfast.seal(root, 2)
        fs.set_fault_hook(None)
        if (root / "2" / MANIFEST_FILE).exists():
            assert holdfast.verify_sealed(root, 2).step == 2
        else:
            assert [ref.step for ref in holdfast.seal(root, 2)] == [2]


def test_every_byte_is_durable_before_the_manifest_is_there(root: Path) -> None:
    synced: list[Path] = []

    def record(point: str, path: Path) -> None:
        if point.startswith("after:sync"):
            synced.append(path)
        if point == "before:rename":
            files = {p for p in (root / "1").rglob("*") if p.is_file() and not p.name.startswith(MANIFEST_FILE)}
            assert files <= set(synced)
            assert {p for p in (root / "1").rglob("*") if p.is_dir()} | {root / "1", root} <= set(synced)

    fs.set_fault_hook(record)
    holdfast.seal(root, 1)
    assert synced


def test_a_step_that_does_not_exist_is_a_wrong_use_of_seal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "seal", str(root), "--step", "7"]) == 64
    assert f"--step: found 7, allowed in {root}: 1, 2, 3\n" in capsys.readouterr().err
    assert not list(root.rglob(MANIFEST_FILE))


def test_the_command_line_seals_and_verifies(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "seal", str(root)]) == 0
    assert main(["checkpoints", "verify", str(root)]) == 0
    assert main(["checkpoints", "ls", str(root.parent)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("sealed step") == 3
    assert "* " in printed
    assert main(["checkpoints", "rm", "--force", str(root / "1")]) == 1, "not Holdfast's"
    os.truncate(root / "1" / "_CHECKPOINT_METADATA", 3)
    assert main(["checkpoints", "verify", str(root / "1")]) == 1


def _mixed(seed: int) -> dict[str, Any]:
    return {
        "params": {"w": jnp.arange(600.0).reshape(20, 30) + seed, "b": jnp.full(3, seed, jnp.bfloat16)},
        "layers": [{"k": jnp.ones(2) * seed}, (jnp.zeros(1), None)],
        "key": jax.random.key(seed),
        "table": np.arange(5, dtype=np.int64) * seed,
        "step": seed,
        "scale": 0.5 * seed,
    }


def _by_manager(root: Path, **handler: Any) -> None:
    made = ocp.PyTreeCheckpointHandler(**handler)
    with ocp.CheckpointManager(root, item_handlers=made) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.PyTreeSave(_mixed(step)))


def _by_second_generation(root: Path) -> None:
    with orbax_v1.training.Checkpointer(root) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, _mixed(step))


FOREIGN: dict[str, Callable[[Path], None]] = {
    "zstd": _by_manager,
    "raw": lambda root: _by_manager(root, use_compression=False),
    "zarr3": lambda root: _by_manager(root, use_zarr3=True),
    "second generation": _by_second_generation,
}


@pytest.mark.parametrize("written", FOREIGN)
def test_a_sealed_checkpoint_is_loaded_whole_in_parts_and_into_a_tree(tmp_path: Path, written: str) -> None:
    root = tmp_path / "mine"
    FOREIGN[written](root)
    with pytest.raises(FileNotFoundError):
        holdfast.load(root)  # nothing is sealed
    holdfast.seal(root)
    whole = holdfast.load(root)
    assert (whole.step, whole.attempt, whole.rejected) == (2, 0, ())
    expected = _mixed(2)
    for name in ("key", "table", "step", "scale"):
        assert bits(whole.state[name]) == bits(expected[name]), name
    assert bits(whole.state["params"]) == bits(expected["params"])
    assert bits(whole.state["layers"]["0"]["k"]) == bits(expected["layers"][0]["k"])
    part = holdfast.load(root, step=1, parts=("params",), like={"params": _mixed(0)["params"]})
    assert bits(part.state["params"]) == bits(_mixed(1)["params"])
    assert bits(holdfast.load(root / "1", like=_mixed(0)).state) == bits(_mixed(1))
    with pytest.raises(errors.StructureMismatch, match="extra"):
        holdfast.load(root, like=_mixed(0) | {"extra": jnp.zeros(1)})
    flip_bit(next((root / "2").rglob("_METADATA")))
    older = holdfast.load(root)
    assert (older.step, [r.step for r in older.rejected]) == (1, [2])
    with pytest.raises(errors.DamagedCheckpoint):
        holdfast.load(root, step=2)


@pytest.mark.parametrize("written", FOREIGN)
def test_sealed_checkpoints_are_compared_leaf_by_leaf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    root = tmp_path / "mine"
    FOREIGN[written](root)
    holdfast.seal(root)
    assert main(["checkpoints", "diff", "--json", str(root / "1"), str(root / "2")]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["only_first"], said["only_second"], said["changed"]) == ([], [], [])
    assert said["max_abs_difference"] == {
        "params.w": 1.0,
        "params.b": 1.0,
        "layers.0.k": 1.0,
        "key": said["max_abs_difference"]["key"],
        "table": 4.0,
        "step": 1.0,
        "scale": 0.5,
    }
    assert main(["checkpoints", "diff", str(root / "1"), str(root / "1")]) == 0
    assert main(["checkpoints", "diff", "--structure", str(root / "1"), str(root / "2")]) == 0
    flip_bit(next((root / "2").rglob("_METADATA")))
    capsys.readouterr()
    assert main(["checkpoints", "diff", str(root / "1"), str(root / "2")]) not in {0, None}
    assert "digest" in capsys.readouterr().err


def test_a_sealed_step_is_compared_with_a_checkpoint_of_a_session(tmp_path: Path) -> None:
    _by_manager(tmp_path / "theirs")
    holdfast.seal(tmp_path / "theirs")
    store = store_at(tmp_path / "ours", 1)
    store.save(2, _mixed(2)).result(30)
    store.close()
    same = comparing.compare(tmp_path / "ours" / "1" / "2", tmp_path / "theirs" / "2")
    assert same.same, list(same.lines())
    other = comparing.compare(tmp_path / "ours" / "1" / "2", tmp_path / "theirs" / "1")
    assert other.values is not None
    assert other.values["table"] == 4.0


def test_of_several_items_names_begin_with_the_items(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    with _manager(root) as manager:
        items = {"weights": ocp.args.StandardSave(_state(1)), "ema": ocp.args.PyTreeSave({"w": jnp.ones(2)})}
        manager.save(1, args=ocp.args.Composite(**items, notes=ocp.args.JsonSave({"a": 1})))
    holdfast.seal(root)
    loaded = holdfast.load(root)
    assert set(loaded.state) == {"weights", "ema"}
    assert bits(loaded.state["weights"]["params"]) == bits(_state(1)["params"])
    assert bits(holdfast.load(root, parts=("ema",)).state) == bits({"ema": {"w": jnp.ones(2)}})


def test_a_sealed_step_without_arrays_says_so(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    with _manager(root) as manager:
        manager.save(1, args=ocp.args.Composite(notes=ocp.args.JsonSave({"a": 1})))
    holdfast.seal(root)
    with pytest.raises(ValueError, match="_METADATA"):
        holdfast.load(root)
