"""The first commit rehearses a restart: what no restart could restore is refused there, every leaf in one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast

INIT = {"w": jnp.zeros(4), "b": jnp.zeros((2, 3)), "n": 0}
DIFFERENT = {
    "another shape": ({"w": jnp.zeros(5), "b": jnp.zeros((2, 3)), "n": 1}, ["['w']"]),
    "another dtype": ({"w": jnp.zeros(4, jnp.bfloat16), "b": np.zeros((2, 3), np.int32), "n": 1}, ["['w']", "['b']"]),
    "a leaf more": ({**INIT, "extra": jnp.ones(1)}, ["['extra']"]),
    "a leaf less": ({"w": jnp.zeros(4), "n": 1}, ["['b']"]),
    "another kind of number": ({**INIT, "n": jnp.float32(1)}, ["['n']"]),
}


def commit_once(path: Path, state: dict[str, Any]) -> None:
    with holdfast.session(path) as run:
        run.restore(dict(INIT))
        for step in run.steps(until=1):
            run.commit(step, state)


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_state_that_no_restart_could_restore_is_refused_before_training_goes_on(tmp_path: Path, case: str) -> None:
    state, leaves = DIFFERENT[case]
    with pytest.raises(holdfast.ConfigurationError, match="a restart could not restore this state") as refusal:
        commit_once(tmp_path, state)
    for leaf in leaves:
        assert leaf in str(refusal.value)
    assert f"{len(leaves)} reason(s)" in str(refusal.value)
    assert not holdfast.checkpoints(tmp_path)


def test_leaves_that_restore_may_add_are_no_difference(tmp_path: Path) -> None:
    def train(init: dict[str, Any], until: int, **allowed: Any) -> None:
        with holdfast.session(tmp_path) as run:
            state, _ = run.restore(init, **allowed)
            for step in run.steps(until=until):
                state = jax.tree.map(lambda leaf: leaf + 1, state)
                run.commit(step, state)

    train({"w": jnp.zeros(4)}, 1)
    train({"w": jnp.zeros(4), "head": jnp.zeros(2)}, 2, new_leaves=["head"])
    train({"w": jnp.zeros(4), "head": jnp.zeros(2)}, 3)
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [3, 2, 1]


def test_a_leaf_that_cannot_be_stored_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(holdfast.UnsupportedLeaf, match=r"\['n'\]"):
        commit_once(tmp_path, {**INIT, "n": 2**80})


def test_the_checkpointer_refuses_it_at_its_first_save(tmp_path: Path) -> None:
    with holdfast.Checkpointer(tmp_path, {"w": jnp.zeros(4)}) as checkpointer:
        assert checkpointer.restore() == 0
        with pytest.raises(holdfast.ConfigurationError, match=r"\['model'\]\['w'\]"):
            checkpointer.save(1, model={"w": jnp.zeros(5)})


def test_a_leaf_that_appears_later_is_refused_by_the_save_that_would_store_it(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
            state, _ = run.restore({"w": jnp.ones(4), "best": None})
            for step in run.steps(until=3):
                state = {"w": state["w"] * 0.9, "best": state["w"] if step >= 2 else None}
                run.commit(step, state)

    with pytest.raises(holdfast.ConfigurationError, match=r"\['best'\]"):
        train()
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [1]


def test_a_state_that_was_refused_is_refused_again(tmp_path: Path) -> None:
    with holdfast.Checkpointer(tmp_path, {"w": jnp.zeros(4)}) as checkpointer:
        checkpointer.restore()
        for _ in range(2):
            with pytest.raises(holdfast.ConfigurationError):
                checkpointer.save(1, model={"w": jnp.zeros(5)})


def test_an_initial_state_of_numpy_arrays_trains_and_restarts(tmp_path: Path) -> None:
    step_function = jax.jit(lambda state: {"w": state["w"] * 0.5})

    def train(until: int) -> Any:
        with holdfast.session(tmp_path) as run:
            state, _ = run.restore(lambda: {"w": np.ones(4)})
            for step in run.steps(until=until):
                state = step_function(state)
                run.commit(step, state)
            return state

    train(2)
    assert np.array_equal(train(4)["w"], np.full(4, 0.5**4, np.float32))


def test_keeping_a_step_that_is_saved_already_is_refused(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
        state, _ = run.restore(dict(INIT))
        for step in run.steps(until=1):
            run.commit(step, state)
            with pytest.raises(ValueError, match="keep: found True for step 1"):
                run.commit(step, state, keep=True)
