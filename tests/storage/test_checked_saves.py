"""Saves that are read back before they count: what storage changed on the way is found, by the leaf's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast
from holdfast import errors
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.format import fs
from holdfast.store.format.ocdbt.decode import NotUnderstoodError
from holdfast.store.write.orbax_readback import written_chunks
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import QUICK, bits, state_of, store_at
from tests.support.storage.world import World

CHECKED = replace(QUICK, check_saves=True)


pytestmark = pytest.mark.usefixtures("no_fault_left")


def _state(seed: int) -> dict[str, Any]:
    return {
        "params": {"w": jnp.arange(4096.0).reshape(64, 64) + seed, "b": jnp.full(3000, seed, jnp.bfloat16)},
        "key": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed), 300),
        "table": np.arange(700) * seed,
    }


def _alter(what: bytes, replaced: bytes) -> None:
    """Once the data file is durable, bytes of it change."""

    def hook(point: str, path: Path) -> None:
        if point == "after:sync-file" and "ocdbt.process_0" in str(path):
            data = path.read_bytes()
            assert data.count(what) == 1
            path.write_bytes(data.replace(what, replaced))

    fs.set_fault_hook(hook)


def test_a_checked_save_is_valid_and_says_what_checking_took(root: Path) -> None:
    store = store_at(root, 1, settings=CHECKED)
    handle = store.save(1, state_of(3))
    handle.result(30)
    assert handle.timings["check_seconds"] > 0
    store.close()
    found = store_at(root, 2).restore(UNPINNED, state_of(0))
    assert found is not None
    assert bits(found.state) == bits(state_of(3))


def test_what_storage_changed_fails_the_save_and_the_older_checkpoint_stays(root: Path) -> None:
    store = store_at(root, 1, settings=CHECKED)
    store.save(1, _state(1)).result(30)
    row = np.asarray(_state(2)["params"]["w"][5]).copy()
    changed = row.copy()
    changed[7] += 0.5
    _alter(row.tobytes(), changed.tobytes())
    with pytest.raises(errors.SaveError) as caught:
        store.save(2, _state(2)).result(30)
    said = r"['params']['w']: found 1 of 4096 numbers changed, max abs difference 0.5, allowed: none"
    assert said in str(caught.value)
    assert "['params']['b']" not in str(caught.value)
    fs.set_fault_hook(None)
    store.save(3, _state(3)).result(30)
    store.close()
    assert [ref.step for ref in RunFolder(root).candidates()] == [3, 1]
    assert not (root / "1" / "2").exists()


def test_control_an_unchecked_save_takes_the_change_for_its_own_and_only_a_restore_finds_it(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, _state(1)).result(30)
    row = np.asarray(_state(2)["params"]["w"][5])
    _alter(row.tobytes(), (row + 1).tobytes())
    store.save(2, _state(2)).result(30)
    fs.set_fault_hook(None)
    store.close()
    found = store_at(root, 2).restore(UNPINNED, _state(0))
    assert found is not None
    assert (found.ref.step, [r.step for r in found.rejected]) == (1, [2])


def test_a_file_that_was_cut_fails_the_save(root: Path) -> None:
    def cut(point: str, path: Path) -> None:
        if point == "after:sync-file" and "ocdbt.process_0" in str(path):
            path.write_bytes(path.read_bytes()[:-5000])

    store = store_at(root, 1, settings=CHECKED)
    fs.set_fault_hook(cut)
    with pytest.raises(errors.SaveError, match="ends at byte"):
        store.save(1, _state(2)).result(30)


def test_every_number_counts_whatever_its_dtype(root: Path) -> None:
    """The other zero, too: bits are compared, not numbers."""
    store = store_at(root, 1, settings=CHECKED)
    state = {"zero": jnp.arange(900.0), "int": jnp.full(900, 77, jnp.int16), "flag": jnp.ones(900, bool)}
    for step, (name, byte) in enumerate((("zero", 0x80), ("int", 1), ("flag", 0)), start=1):

        def hook(point: str, path: Path, name: str = name, byte: int = byte) -> None:
            if point == "after:sync-file" and "ocdbt.process_0" in str(path):
                raw = np.asarray(state[name]).tobytes()
                data = bytearray(path.read_bytes())
                data[data.index(raw) + (3 if name == "zero" else 0)] = byte
                path.write_bytes(data)

        fs.set_fault_hook(hook)
        with pytest.raises(errors.SaveError, match=rf"\['{name}'\]: found 1 of 900 numbers changed"):
            store.save(step, state).result(30)


def test_bytes_between_the_arrays_count_too(root: Path) -> None:
    """They would make the restore refuse the checkpoint."""
    flag = np.ones(901, bool)

    def hook(point: str, path: Path) -> None:
        if point == "after:sync-file" and "ocdbt.process_0" in str(path):
            data = bytearray(path.read_bytes())
            data[data.index(flag.tobytes()) + flag.nbytes] ^= 4
            path.write_bytes(data)

    store = store_at(root, 1, settings=CHECKED)
    fs.set_fault_hook(hook)
    with pytest.raises(errors.SaveError, match="no array differs, but"):
        store.save(1, {"flag": jnp.asarray(flag), "w": jnp.ones(900)}).result(30)


def test_the_setting_is_yes_or_no() -> None:
    with pytest.raises(ValueError, match=r"check_saves: found 'exact', allowed: True \| False"):
        StoreSettings(check_saves="exact")  # type: ignore[arg-type]


@pytest.mark.parametrize("leaf", ["w", "b", "table", "keys"])
def test_what_orbax_wrote_is_compared_too(root: Path, leaf: str) -> None:
    store = store_at(root, 1, settings=replace(CHECKED, writer="orbax"))
    assert store.save(1, _state(1)).result(30).step == 1
    leaves = {**_state(2)["params"], "table": _state(2)["table"], "keys": jax.random.key_data(_state(2)["keys"])}
    raw = np.asarray(leaves[leaf]).tobytes()

    def hook(point: str, path: Path) -> None:
        if point == "after:sync-file" and "ocdbt.process_0" in str(path):
            data = path.read_bytes()
            changed = data.replace(raw, bytes([raw[0] ^ 1]) + raw[1:])
            path.write_bytes(changed)
            seen.append(changed != data)

    seen: list[bool] = []
    fs.set_fault_hook(hook)
    with pytest.raises(errors.SaveError, match=rf"\['{leaf}'\]: found 1 of {leaves[leaf].size} numbers changed"):
        store.save(2, _state(2)).result(30)
    assert seen.count(True) == 1
    fs.set_fault_hook(None)
    store.close()
    assert [ref.step for ref in RunFolder(root).candidates()] == [1]


def test_numbers_that_orbax_did_not_write_are_missed(root: Path) -> None:
    store = store_at(root, 1, settings=replace(CHECKED, writer="orbax"))
    store.save(1, {"w": jnp.ones(9)}).result(30)
    state = root / "1/1/state"
    where = state / "ocdbt.process_0", state / "array_metadatas/process_0"
    assert len(list(written_chunks(*where, {"w": jnp.ones(9)}))) == 1
    with pytest.raises(NotUnderstoodError, match="more: found 0 numbers, allowed: 3"):
        list(written_chunks(*where, {"w": jnp.ones(9), "more": jnp.ones(3)}))


@pytest.mark.parametrize("writer", ["direct", "orbax"])
def test_each_process_compares_what_it_wrote(world: World, root: Path, writer: str) -> None:
    told = world.call("tests.support.storage.writer_tasks:save_altered", root, writer)
    for error in told:
        assert "process 1: ReadBackError" in error
        assert "['w']: found 1 of 4096 numbers changed" in error
    assert not list(RunFolder(root).candidates())


def test_a_session_and_a_checkpointer_take_it(tmp_path: Path) -> None:
    def hook(point: str, path: Path) -> None:
        if point == "after:sync-file" and "/1/1/state/ocdbt.process_0" in str(path):
            data = bytearray(path.read_bytes())
            data[0] ^= 1
            path.write_bytes(data)

    fs.set_fault_hook(hook)
    params = {"w": jnp.ones(900)}
    with holdfast.session(tmp_path, run="run", every=holdfast.every_steps(1), check_saves=True) as run:
        run.restore(lambda: params)
        for step in run.steps(until=2):
            run.commit(step, params)
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [2]
    with pytest.raises(ValueError, match="check_saves"):
        holdfast.session(tmp_path, check_saves="yes")  # type: ignore[arg-type]
    trained = holdfast.Checkpointer(tmp_path / "other", params, check_saves=True)
    with pytest.raises(errors.SaveError, match="found 1 of 900 numbers changed"):
        trained.save(1, model=params).result(30)
