"""The object form: a loop of one's own, an orderly end whichever way it comes, errors that are met."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax import nnx

import holdfast
from holdfast import errors
from holdfast.store.format import fs
from holdfast_contract.manifest import from_bytes
from holdfast_contract.runfolder import RunFolder
from tests.support.polling import until

PROGRAM = """
import os, sys, time
import jax.numpy as jnp
import holdfast
from holdfast.store.format import fs

def hold_until_released(operation, path):
    while operation == "before:sync-file" and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)

fs.set_fault_hook(hold_until_released)
def begin():
    checkpointer = holdfast.Checkpointer(sys.argv[1], {"w": jnp.ones(8)})
    handle = checkpointer.save(checkpointer.restore() + 1, model={"w": jnp.ones(8)})
    assert not handle.done(), "the save must be in flight for this test to mean anything"
    print("saving", flush=True)
    return checkpointer
"""
ENDS = {
    "last line": ("begin()", 0),
    "exception": ("begin(); 1 / 0", 1),
    "sys.exit in the block": ("with begin(): sys.exit(5)", 5),
    "SIGTERM": ("begin(); time.sleep(60)", 143),
    "SIGTERM while it waits": ("with begin(): pass", 143),
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Path]]:
    """All programs side by side: (exit code, run folder) of each."""
    running = {}
    for name, (tail, _) in ENDS.items():
        folder = tmp_path_factory.mktemp("end")
        log = (folder / "log").open("wb")
        command = [sys.executable, "-c", PROGRAM + tail, str(folder / "checkpoints"), str(folder / "release")]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        running[name] = (subprocess.Popen(command, stdout=log, stderr=log, env=environment), folder)
    for name, (process, folder) in running.items():
        until(lambda folder=folder: "saving" in (folder / "log").read_text(), 60, "a save")  # type: ignore[misc]
        if "SIGTERM" in name:
            process.send_signal(signal.SIGTERM)
        (folder / "release").touch()
    return {name: (process.wait(60), folder / "checkpoints" / "default") for name, (process, folder) in running.items()}


@pytest.mark.parametrize("name", ENDS)
def test_no_end_loses_the_save_in_flight(ends: dict[str, tuple[int, Path]], name: str) -> None:
    code, folder = ends[name]
    said = (folder.parents[1] / "log").read_text()
    assert code == ENDS[name][1], said
    assert [ref.step for ref in RunFolder(folder).candidates()] == [1], said


def test_nnx_objects_are_filled_in_place_and_the_step_is_told(tmp_path: Path) -> None:
    def objects(seed: int) -> tuple[nnx.Linear, nnx.Optimizer[nnx.Linear]]:
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    model, optimizer = objects(0)
    with holdfast.Checkpointer(tmp_path / "run", model, optimizer) as checkpointer:
        assert checkpointer.restore() == 0
        gradients = nnx.grad(lambda m: m(jnp.ones((1, 2))).sum())(model)
        optimizer.update(model, gradients)
        handle = checkpointer.save(7, {"loss": jnp.float32(0.5)})
    assert handle.error is None
    assert handle.timings["total_seconds"] > 0
    manifest = from_bytes((tmp_path / "run/default/1/7/HOLDFAST.json").read_bytes())
    assert manifest.metrics == {"loss": 0.5}
    other, other_optimizer = objects(1)
    with holdfast.Checkpointer(tmp_path / "run", other, other_optimizer) as checkpointer:
        assert checkpointer.restore() == 7
    assert np.array_equal(other.kernel.get_value(), model.kernel.get_value())
    assert int(other_optimizer.step.get_value()) == 1


def test_plain_trees_are_given_at_each_save(tmp_path: Path) -> None:
    params = {"w": jnp.arange(4.0)}
    state = optax.adam(1e-2).init(params)
    with holdfast.Checkpointer(tmp_path, params, state, keep=holdfast.keep(latest=2)) as checkpointer:
        checkpointer.restore()
        with pytest.raises(TypeError, match="model: found nothing, allowed: the present one"):
            checkpointer.save(1)
        for step in (1, 2, 3, 4):
            params = jax.tree.map(lambda x: x + 1, params)
            checkpointer.save(step, {"loss": 1.0}, model=params, optimizer=state)
        checkpointer.wait()
    assert [ref.step for ref in RunFolder(tmp_path / "default").candidates()] == [4, 3]
    with holdfast.Checkpointer(tmp_path, {"w": jnp.zeros(4)}, state) as checkpointer:
        assert checkpointer.restore() == 4
        assert np.array_equal(checkpointer.model["w"], jnp.arange(4.0) + 4)
        wider = {"w": checkpointer.model["w"], "b": jnp.ones(1)}
        with pytest.raises(errors.ConfigurationError, match=r"\['model'\]\['b'\]: expected no such leaf"):
            checkpointer.save(5, model=wider, optimizer=state)  # the same program could not restore it


def test_a_handle_can_be_awaited_and_waiting_may_be_given_up(tmp_path: Path) -> None:
    async def main(checkpointer: holdfast.Checkpointer) -> tuple[Any, Any]:
        first = await checkpointer.save(1, model={"w": jnp.ones(3)})
        fs.set_fault_hook(_slow)
        second = checkpointer.save(2, model={"w": jnp.ones(3)})
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(second, 0.01)
        fs.set_fault_hook(None)
        return first, await second

    with holdfast.Checkpointer(tmp_path, {"w": jnp.ones(3)}) as checkpointer:
        try:
            refs = asyncio.run(main(checkpointer))
        finally:
            fs.set_fault_hook(None)
    assert [ref.step for ref in refs] == [1, 2]


def test_an_error_is_in_the_handle_and_at_the_next_call_which_still_saves(tmp_path: Path) -> None:
    with holdfast.Checkpointer(tmp_path, {"w": jnp.ones(3)}) as checkpointer:
        fs.set_fault_hook(_full_disk)
        failed = checkpointer.save(1, model={"w": jnp.ones(3)})
        assert failed.wait(30)
        fs.set_fault_hook(None)
        with pytest.raises(errors.SaveError, match="No space left"):
            checkpointer.save(2, model={"w": jnp.ones(3)})
        checkpointer.wait()
        assert isinstance(failed.error, errors.SaveError)
        assert checkpointer.last is not None
        assert checkpointer.last.step == 2
    assert [ref.step for ref in RunFolder(tmp_path / "default").candidates()] == [2]


def test_leaving_the_block_raises_an_error_that_nobody_has_seen(tmp_path: Path) -> None:
    def save_one() -> None:
        with holdfast.Checkpointer(tmp_path, {"w": jnp.ones(3)}) as checkpointer:
            fs.set_fault_hook(_full_disk)
            checkpointer.save(1, model={"w": jnp.ones(3)})

    try:
        with pytest.raises(errors.SaveError):
            save_one()
    finally:
        fs.set_fault_hook(None)


def _slow(operation: str, path: Path) -> None:
    if operation == "before:sync-file":
        threading.Event().wait(0.1)


def _full_disk(operation: str, path: Path) -> None:
    if operation == "before:sync-file":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
