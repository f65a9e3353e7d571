"""Leaving the loop early loses nothing in silence: the last commit is saved exactly, or the end of the block says why not."""

from __future__ import annotations

import time
from collections.abc import Callable
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
from holdfast.training.last_commit import CHEAP_SECONDS
from tests.support.training.tiny_train import Counter

Step = Callable[[dict[str, Any]], dict[str, Any]]
DONATING: Step = jax.jit(lambda state: {"n": state["n"] + 1}, donate_argnums=0)
KEEPING: Step = jax.jit(lambda state: {"n": state["n"] + 1})


class Slow(Counter):
    """A position that takes longer to say than every commit may cost."""

    def get_state(self) -> dict[str, int]:
        time.sleep(5 * CHEAP_SECONDS)
        return super().get_state()


def newest(path: Path) -> int:
    return holdfast.load(path).step


def start() -> dict[str, Any]:
    return {"n": jnp.int32(0)}


@pytest.mark.parametrize("step_of", [DONATING, KEEPING], ids=["donated", "kept"])
def test_a_break_after_the_commit_saves_that_step(tmp_path: Path, step_of: Step) -> None:
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        state, data = run.restore(start, Counter())
        for step in run.steps(until=100):
            next(data)
            state = step_of(state)
            run.commit(step, state, data=data, metrics={"loss": state["n"]}, metadata={"step": step})
            if step == 7:
                break
    loaded = holdfast.load(tmp_path)
    assert (loaded.step, int(loaded.state["n"]), loaded.metadata, loaded.metrics) == (7, 7, {"step": 7}, {"loss": 7.0})
    with holdfast.session(tmp_path) as run:
        state, data = run.restore(start, Counter())
        assert (int(state["n"]), data.position) == (7, 7)


def test_a_return_out_of_the_loop_saves_too(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(start)
            for step in run.steps(until=None):
                state = KEEPING(state)
                run.commit(step, state)
                if step == 5:
                    return

    train()
    assert newest(tmp_path) == 5


def test_in_mid_step_the_commit_before_is_saved_as_it_was(tmp_path: Path) -> None:
    """Neither the containers that changed afterwards nor the batch that was taken since are in it."""
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        state, data = run.restore(start, Counter())
        for step in run.steps(until=100):
            next(data)
            state["n"] = KEEPING(state)["n"]
            if step == 5:
                break
            run.commit(step, state, data=data)
    assert int(holdfast.load(tmp_path).state["n"]) == 4
    with holdfast.session(tmp_path) as run:
        state, data = run.restore(start, Counter())
        assert (int(state["n"]), data.position) == (4, 4)


def leave_in_mid_step(run: holdfast.Session, step_of: Callable[[Any], Any], state: Any, data: Any = None) -> None:
    for step in run.steps(until=100):
        state = step_of(state)
        if step == 6:
            return
        run.commit(step, state, data=data, save=step == 2)


def test_donated_arrays_are_an_error_that_names_the_steps_and_the_newest_checkpoint(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(start)
            leave_in_mid_step(run, DONATING, state)

    with pytest.raises(errors.StepsNotSaved, match=r"steps 3 to 5: .*donated.* attempt 1, step 2") as caught:
        train()
    assert (caught.value.first, caught.value.last) == (3, 5)
    assert newest(tmp_path) == 2


def test_a_state_that_changes_in_place_is_an_error(tmp_path: Path) -> None:
    def build() -> dict[str, Any]:
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        return {"model": model, "optimizer": nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)}

    def train(folder: Path, last: int) -> None:
        with holdfast.session(folder, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(build)
            for step in run.steps(until=100):
                state["model"].bias.set_value(jnp.full(1, float(step)))
                if step == last:
                    break
                run.commit(step, state)
                if step == 3:
                    break

    train(tmp_path / "committed", last=9)
    assert holdfast.load(tmp_path / "committed").state["model"]["bias"].tolist() == [3.0]
    with pytest.raises(errors.StepsNotSaved, match="changes in place"):
        train(tmp_path / "mid-step", last=3)


def test_numpy_arrays_change_in_place_too(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(lambda: {"n": np.zeros(3)})
            leave_in_mid_step(run, lambda s: {"n": np.add(s["n"], 1, out=s["n"])}, state)

    with pytest.raises(errors.StepsNotSaved, match="changes in place"):
        train()


def test_a_position_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, data = run.restore(start, Slow())
            leave_in_mid_step(run, KEEPING, state, data)

    with pytest.raises(errors.StepsNotSaved, match=r"get_state\(\) takes more than 1 ms"):
        train()


def test_after_the_commit_a_slow_position_is_exact(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        state, data = run.restore(start, Slow())
        for step in run.steps(until=100):
            next(data)
            state = DONATING(state)
            run.commit(step, state, data=data)
            if step == 9:
                break
    with holdfast.session(tmp_path) as run:
        _, data = run.restore(start, Counter())
        assert data.position == 9


def test_steps_without_a_commit_are_an_error(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path) as run:
            state, _ = run.restore(start)
            for _ in run.steps(until=5):
                state = KEEPING(state)

    with pytest.raises(errors.StepsNotCommitted, match=r"steps 1 to 5 ran without a commit.*run\.commit"):
        train()
    assert not holdfast.checkpoints(tmp_path)


def test_a_last_step_without_a_commit_is_an_error_after_the_rest_is_saved(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(start)
            for step in run.steps(until=5):
                state = KEEPING(state)
                if step < 5:
                    run.commit(step, state)

    with pytest.raises(errors.StepsNotCommitted, match="step 5 ran without a commit"):
        train()
    assert newest(tmp_path) == 4


def test_an_exception_saves_nothing_more(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
            state, _ = run.restore(start)
            for step in run.steps(until=9):
                state = KEEPING(state)
                run.commit(step, state)
                if step == 5:
                    raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train()
    assert not holdfast.checkpoints(tmp_path)


def test_what_was_asked_for_before_the_break_is_answered_by_the_last_save(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        state, _ = run.restore(start)
        for step in run.steps(until=100):
            state = KEEPING(state)
            run.commit(step, state)
            if step == 3:
                answer = run.request_save()
                break
    assert answer.result(10).step == 3


def test_a_session_that_trains_nothing_ends_quietly(tmp_path: Path) -> None:
    with holdfast.session(tmp_path) as run:
        run.restore(start)
    assert not holdfast.checkpoints(tmp_path)
