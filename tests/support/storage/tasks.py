"""What the processes of a two-process world do in the storage tests; each function runs on every rank."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast.store import UNPINNED, CheckpointExtras, StoreSettings
from holdfast.store.format import digests, fs
from holdfast.store.read.candidates import CheckpointChoice
from holdfast_contract.manifest import CheckpointRef
from tests.support.storage.states import QUICK, bits, state_of, store_at

Told = dict[str, Any]
STEPS_PER_SAVE = 40


def save_steps(
    shared: Coordination, root: Path, attempt: int, steps: list[int], losses: dict[int, float] | None = None
) -> Told:
    """Save each step, wait for each; the references. The loss is the step where ``losses`` does not say."""
    store = store_at(root, attempt, shared=shared)
    refs = []
    for step in steps:
        data = f"rank {shared.process_index} step {step}".encode()
        loss = jnp.float32((losses or {}).get(step, step))
        handle = store.save(step, state_of(step), CheckpointExtras(data=data, metrics={"loss": loss}))
        refs.append(handle.result(30))
    store.close()
    return {"refs": refs}


def restore(shared: Coordination, root: Path, attempt: int, shape_seed: int = 0) -> Told:
    """Restore the newest valid one and compare it with what its step must hold."""
    store = store_at(root, attempt, shared=shared)
    restored = store.restore(UNPINNED, state_of(shape_seed))
    if restored is None:
        return {"ref": None}
    return {
        "ref": restored.ref,
        "data": restored.data,
        "rejected": restored.rejected,
        "equal": bits(restored.state) == bits(state_of(restored.ref.step)),
        "shardings": [x.sharding for x in jax.tree.leaves(restored.state) if isinstance(x, jax.Array)]
        == [x.sharding for x in jax.tree.leaves(state_of(0)) if isinstance(x, jax.Array)],
    }


def continue_one_step(shared: Coordination, root: Path, attempt: int) -> Told:
    """Step ``attempt`` of a state whose numbers begin in Python's form and whose types are weak, after a restore."""

    @jax.jit
    def step_function(state: Any) -> Any:
        w = state["w"] - state["rate"] * state["table"]
        return {"w": w, "table": state["table"] / 3, "rate": state["rate"] * 0.9, "step": state["step"] + 1}

    def begun() -> Any:
        w = state_of(1)["params"]["w"]
        table = jax.jit(lambda: jnp.full(w.shape, 0.25), out_shardings=w.sharding)()
        return {"w": w.astype(jnp.bfloat16), "table": table, "rate": jnp.asarray(0.1), "step": 0}

    store = store_at(root, attempt, shared=shared)
    restored = store.restore(UNPINNED, begun())
    found = step_function(restored.state if restored else begun())
    store.save(attempt, found).result(30)
    store.close()
    expected = begun()
    for _ in range(attempt):
        expected = step_function(expected)
    types, expected_types = (
        [(leaf.dtype.name, leaf.weak_type) for leaf in jax.tree.leaves(each)] for each in (found, expected)
    )
    return {"types": types, "equal": bits(found) == bits(expected) and types == expected_types}


def restore_choice(
    shared: Coordination, root: Path, attempt: int, choice: CheckpointChoice, pin: CheckpointRef | None = None
) -> Told:
    """Restore by a choice, below a pin if there is one: what this rank got, or why it got nothing."""
    store = store_at(root, attempt, shared=shared)
    try:
        restored = store.restore(pin or UNPINNED, state_of(0), choice=choice)
    except errors.NoValidCheckpoint as error:
        return {"ref": None, "rejected": error.rejected, "code": int(error.exit_code), "error": str(error)}
    if restored is None:
        return {"ref": None, "rejected": None}
    equal = bits(restored.state) == bits(state_of(restored.ref.step))
    return {"ref": restored.ref, "rejected": restored.rejected, "equal": equal, "data": restored.data}


def train_while_saving(shared: Coordination, root: Path, saves: int) -> Told:
    """Collectives with donated buffers on the main thread while saves go on behind; no save may need a collective."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a save called a collective of its own")

    original = multihost_utils.sync_global_devices
    multihost_utils.sync_global_devices = refuse
    try:
        store = store_at(root, 1, shared=shared)
        state = state_of(1)
        step_function = jax.jit(lambda w: w + 1 + 0 * w.sum(), donate_argnums=0)
        weights, expected, during = state["params"]["w"], {}, 0
        for number in range(1, saves + 1):
            state["params"]["w"] = weights
            expected[number] = bits(weights)
            handle = store.save(number, state)
            for _ in range(STEPS_PER_SAVE):  # the same on all ranks: each step is a collective
                weights = step_function(weights)
                weights.block_until_ready()
                during += not handle.done()
            handle.result(30)
        state["params"]["w"] = weights
        store.close()
        final = store.restore(UNPINNED, state)
        assert final is not None
        return {"ref": final.ref, "equal": bits(final.state["params"]["w"]) == expected[saves], "during": during}
    finally:
        multihost_utils.sync_global_devices = original


def save_with_fault(shared: Coordination, root: Path, rank: int, operation: str, number: int) -> Told:
    """Step 1 well, step 2 with an injected error on one rank, step 3 well."""
    store = store_at(root, 1, shared=shared)
    store.save(1, state_of(1), CheckpointExtras(data=b"1")).result(30)
    if shared.process_index == rank:
        fs.set_fault_hook(_fail_once(operation, number))
    try:
        store.save(2, state_of(2), CheckpointExtras(data=b"2")).result(30)
        told: Told = {"error": None}
    except errors.SaveError as error:
        told = {"error": type(error).__name__, "rank": error.rank, "errno": error.errno, "step": error.step}
        told["path"] = str(error.path)
    finally:
        fs.set_fault_hook(None)
    told["third"] = store.save(3, state_of(3), CheckpointExtras(data=b"3")).result(30)
    store.close()
    return told


def save_with_late_rank(shared: Coordination, root: Path, rank: int) -> Told:
    """One rank's storage hangs until the save has failed on all others."""
    store = store_at(root, 1, settings=StoreSettings(save_seconds=1.5, claim_seconds=20), shared=shared)
    if shared.process_index == rank:
        fs.set_fault_hook(_hanging("before:sync-file", lambda: _await_failures(shared)))
    try:
        store.save(1, state_of(1)).result(30)
        return {"error": None}
    except errors.SaveError as error:
        shared.create(f"failed/{shared.process_index}", "")
        return {"error": type(error).__name__, "rank": error.rank}
    finally:
        fs.set_fault_hook(None)


def save_differing_leaf(shared: Coordination, root: Path) -> Told:
    """A number that is not the same on all ranks."""
    store = store_at(root, 1, shared=shared)
    state = state_of(1)
    state["step"] = 100 + shared.process_index
    try:
        store.save(1, state).result(30)
        return {"error": None}
    except errors.SaveError as error:
        return {"error": str(error), "rank": error.rank}


def restore_with_fault(shared: Coordination, root: Path, number: int, times: int) -> Told:
    """Rank 1 meets an I/O error ``times`` times while reading."""
    store = store_at(root, 2, shared=shared)
    left = times

    def failing(path: Path) -> tuple[int, str]:
        nonlocal left
        if left > 0 and shared.process_index == 1:
            left -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    real = digests.hash_file
    monkey: Any = digests
    monkey.hash_file = failing
    try:
        restored = store.restore(UNPINNED, state_of(0))
        return {"error": None, "ref": restored and restored.ref, "rejected": restored and restored.rejected}
    except errors.StorageError as error:
        return {"error": str(error), "errno": error.errno}
    finally:
        monkey.hash_file = real


def restore_other_shape(shared: Coordination, root: Path) -> Told:
    """Only rank 1 asks for another shape: all must end with the reason."""
    store = store_at(root, 2, shared=shared)
    wanted = state_of(0)
    if shared.process_index == 1:
        wanted["table"] = wanted["table"][:3]
    try:
        store.restore(UNPINNED, wanted)
        return {"error": None}
    except errors.StructureMismatch as error:
        return {"error": str(error), "leaf": error.leaf, "expected": error.expected, "found": error.found}


def claim_separately(shared: Coordination, roots: list[Path]) -> Told:
    """Each rank has another folder: the volume is not shared."""
    try:
        store_at(roots[shared.process_index], 1, settings=QUICK, shared=shared)
        return {"error": None}
    except errors.StorageUnusable as error:
        return {"error": str(error)}


def step_after_restore(shared: Coordination, root: Path) -> int:
    """An optimizer's counter made outside of jit takes part in a jitted step over all devices, after a restore too."""
    store = store_at(root, 2, shared=shared)
    struct: Any = jax.ShapeDtypeStruct
    abstract = jax.tree.map(
        lambda x: struct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x, state_of(0)
    )
    restored = store.restore(UNPINNED, abstract)
    assert restored is not None
    assert bits(restored.state) == bits(state_of(2))
    count, weights = restored.state["opt"][0].count, restored.state["params"]["w"]
    assert not count.committed
    moved, _ = jax.jit(lambda c, w: (c + 3, w.sum()))(count, weights)
    return int(moved)


def _fail_once(operation: str, number: int) -> fs.FaultHook:
    armed = [True]

    def hook(found: str, path: Path) -> None:
        if armed and found == operation:
            armed.clear()
            raise OSError(number, os.strerror(number), str(path))

    return hook


def _hanging(operation: str, until_then: Callable[[], None]) -> fs.FaultHook:
    armed = [True]

    def hook(found: str, path: Path) -> None:
        if armed and found == operation:
            armed.clear()
            until_then()

    return hook


def _await_failures(shared: Coordination) -> None:
    for other in set(range(shared.process_count)) - {shared.process_index}:
        shared.get(f"failed/{other}", 30)


NO_SPACE = errno.ENOSPC
