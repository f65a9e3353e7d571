"""A restart continues to the bit whatever form its numbers begin in: Python's, NumPy's, arrays, weakly typed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax.training.train_state import TrainState

import holdfast
from holdfast import errors
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.store_settings import WriterName
from tests.support.storage.states import bits, store_at

Build = Callable[[], Any]
Step = Callable[[Any], Any]


def trained(path: Path, build: Build, step_function: Step, *, until: int) -> Any:
    """The state after one start of a program that ends at step ``until``."""
    with holdfast.session(path, every=holdfast.every_steps(1)) as run:
        state, _ = run.restore(build())
        for step in run.steps(until=until):
            state = step_function(state)
            run.commit(step, state)
    return state


def exact(state: Any) -> list[Any]:
    """Paths, types, dtypes, weak types and bits of all leaves."""
    weak = [getattr(leaf, "weak_type", None) for leaf in jax.tree.leaves(state)]
    return [*bits(state), weak]


def uninterrupted(build: Build, step_function: Step, steps: int) -> Any:
    state = build()
    for _ in range(steps):
        state = step_function(state)
    return state


def train_state() -> TrainState:
    model = nn.Dense(3)
    return TrainState.create(  # type: ignore[no-untyped-call,no-any-return]
        apply_fn=model.apply, params=model.init(jax.random.key(0), jnp.ones((1, 4))), tx=optax.adamw(1e-2)
    )


@jax.jit
def train_step(state: TrainState) -> TrainState:
    gradients = jax.grad(lambda params: jnp.mean(state.apply_fn(params, jnp.ones((2, 4))) ** 2))(state.params)
    return state.apply_gradients(grads=gradients)  # type: ignore[no-untyped-call,no-any-return]


def test_a_flax_train_state_continues_in_the_same_program(tmp_path: Path) -> None:
    trained(tmp_path, train_state, train_step, until=1)
    trained(tmp_path, train_state, train_step, until=2)
    found = trained(tmp_path, train_state, train_step, until=4)
    expected = uninterrupted(train_state, train_step, 4)
    assert found.step == 4
    assert exact((found.step, found.params, found.opt_state)) == exact(
        (expected.step, expected.params, expected.opt_state)
    )


@jax.jit
def drifting_step(state: dict[str, Any]) -> dict[str, Any]:
    """``w`` keeps its dtype only while ``rate`` and ``table`` are weakly typed."""
    w = state["w"] - state["rate"] * jnp.sin(state["w"]) + state["table"]
    return {"w": w, "rate": state["rate"] * 0.9, "table": state["table"] + 1 / 3, "step": state["step"] + 1}


NUMBERS: dict[str, Callable[[], dict[str, Any]]] = {
    "python": lambda: {"rate": 0.1, "step": 0},
    "weak arrays": lambda: {"rate": jnp.asarray(0.1), "step": jnp.asarray(0)},
    "numpy": lambda: {"rate": np.float64(0.1), "step": np.int64(0)},
    "numpy without axes": lambda: {"rate": np.array(0.1), "step": np.array(0)},
    "arrays": lambda: {"rate": jnp.float32(0.1), "step": jnp.int32(0)},
}


# Strongly typed numbers make w float32 in the first step, restart or not.
CASES = [("bfloat16", "python"), ("bfloat16", "weak arrays"), *(("float32", form) for form in NUMBERS)]


@pytest.mark.parametrize(("dtype", "form"), CASES)
def test_three_restarts_continue_to_the_bit(tmp_path: Path, dtype: str, form: str) -> None:
    def build() -> dict[str, Any]:
        w = jnp.linspace(0, 1, 5).astype(dtype)
        return {"w": w, "table": jnp.full((5,), 0.25), **NUMBERS[form]()}

    for until in (1, 2, 3, 5):
        found = trained(tmp_path, build, drifting_step, until=until)
    assert exact(found) == exact(uninterrupted(build, drifting_step, 5))


def saved_and_restored(root: Path, state: Any, wanted: Any, writer: WriterName = "direct") -> Any:
    settings = StoreSettings(writer=writer)
    store = store_at(root, 1, settings=settings)
    store.save(1, state).result(60)
    store.close()
    restored = store_at(root, 2, settings=settings).restore(UNPINNED, wanted)
    assert restored is not None
    return restored.state


@pytest.mark.parametrize("writer", ["direct", "orbax"])
def test_the_form_that_was_committed_comes_back(tmp_path: Path, writer: WriterName) -> None:
    committed = {
        "python": 7,
        "array": jnp.float16(0.1),
        "weak": jnp.asarray(0.1),
        "numpy": np.float64(0.1),
        "flag": jnp.asarray(True),
        "jitted": jnp.float32(0.1),
        "widened": jnp.bfloat16(0.1),
    }
    begun = {
        "python": jnp.int32(0),
        "array": 0.0,
        "weak": 0.0,
        "numpy": 0.0,
        "flag": False,
        "jitted": np.float64(0),
        "widened": jnp.asarray(0.0),
    }
    assert exact(saved_and_restored(tmp_path, committed, begun, writer)) == exact(committed)


# Begun as, committed as.
OTHER_KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "int, float": lambda: (0, jnp.float32(1)),
    "float, int": lambda: (0.0, jnp.int32(1)),
    "bool, int": lambda: (False, jnp.int32(1)),
    "int, bool": lambda: (0, False),
    "an axis": lambda: (0, jnp.zeros(1, jnp.int32)),
    "two arrays": lambda: (jnp.float32(0), jnp.bfloat16(1)),
    "numpy and array": lambda: (np.float32(0), jnp.bfloat16(1)),
    "a key": lambda: (0, jax.random.key(0)),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_numbers_of_two_kinds_are_two_leaves(tmp_path: Path, name: str) -> None:
    begun, committed = OTHER_KINDS[name]()
    with pytest.raises(errors.StructureMismatch) as caught:
        saved_and_restored(tmp_path, {"n": committed, "w": jnp.ones(2)}, {"n": begun, "w": jnp.ones(2)})
    assert caught.value.leaf == "['n']"


@pytest.mark.parametrize("writer", ["direct", "orbax"])
def test_weakly_typed_arrays_keep_bits_sharding_and_may_be_donated(tmp_path: Path, writer: WriterName) -> None:
    spec: Any = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    split = jax.sharding.NamedSharding(mesh, spec("x"))
    table = jax.device_put(jnp.full((16,), 0.1), split)
    nan = jax.lax.bitcast_convert_type(jnp.uint32(0xFFC12345), jnp.float32)
    state = {"table": table, "nan": jnp.asarray(0.0).at[...].set(nan), "count": jnp.asarray(3)}
    assert all(leaf.weak_type for leaf in state.values())
    restored = saved_and_restored(tmp_path, state, state, writer)
    assert exact(restored) == exact(state)
    assert restored["table"].sharding == split
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)(restored)
    assert exact(doubled["table"]) == exact(table * 2)
    assert restored["table"].is_deleted()


def test_a_new_leaf_keeps_the_type_that_the_program_gives_it(tmp_path: Path) -> None:
    def same(state: Any) -> Any:
        return state

    trained(tmp_path, lambda: {"w": jnp.ones(2)}, same, until=1)
    with holdfast.session(tmp_path) as run:
        state, _ = run.restore({"w": jnp.zeros(2), "rate": jnp.asarray(0.5)}, new_leaves=["rate"])
        for step in run.steps(until=2):
            run.commit(step, state)
    assert exact(state) == exact({"w": jnp.ones(2), "rate": jnp.asarray(0.5)})
