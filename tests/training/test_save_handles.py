"""What a session says of each save, what a program may note beside its state, and how errors come to light."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import errors
from holdfast.state import metadata
from holdfast.store.format import fs
from holdfast_contract.keys import METADATA_FILE
from tests.support.polling import until

CONFIG = {"model": {"layers": 4, "names": ["a", "ä"]}, "rate": 0.1, "tied": True, "seed": None}


pytestmark = pytest.mark.usefixtures("no_fault_left")


def full_disk(operation: str, path: Path) -> None:
    if operation == "before:sync-file":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def state() -> dict[str, Any]:
    return {"w": jnp.ones(3)}


def test_a_commit_that_saves_gives_the_handle_of_its_save(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(2), timeout_seconds=77) as run:
        found, _ = run.restore(state)
        handles = [run.commit(step, found) for step in run.steps(until=4)]
    assert [h is None for h in handles] == [True, False, True, False]
    for step in (2, 4):
        handle = handles[step - 1]
        assert handle is not None
        assert handle.result(0).step == step
        assert handle.error is None
        assert handle.timings["total_seconds"] >= handle.timings["snapshot_seconds"] >= 0
        assert asyncio.run(_awaited(handle)).step == step


async def _awaited(handle: Any) -> Any:
    return await handle


def test_by_default_training_goes_on_and_says_so(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
        found, _ = run.restore(state)
        for step in run.steps(until=3):
            fs.set_fault_hook(full_disk if step == 1 else None)
            handle = run.commit(step, found)
            assert handle is not None
            assert handle.wait(30)
            if step == 1:
                assert isinstance(handle.error, errors.SaveError)
                until(lambda: "No space left" in run.save_error, 30, "the reason in save_error")
        until(lambda: run.save_error == "", 30, "save_error cleared by a save that succeeded")


def test_if_told_to_the_next_save_raises_what_made_the_one_before_fail(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.every_steps(1), on_save_error="raise") as run:
            found, _ = run.restore(state)
            for step in run.steps(until=9):
                fs.set_fault_hook(full_disk if step == 3 else None)
                handle = run.commit(step, found)
                assert handle is not None
                assert handle.wait(30)

    with pytest.raises(errors.SaveError, match="save of step 3"):
        train()
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [4, 2, 1], "the next save was begun and finished"


def test_the_last_save_raises_whatever_was_said(tmp_path: Path) -> None:
    def train() -> None:
        with holdfast.session(tmp_path, every=holdfast.every_steps(9)) as run:
            found, _ = run.restore(state)
            for step in run.steps(until=2):
                fs.set_fault_hook(full_disk)
                run.commit(step, found)

    with pytest.raises(errors.SaveError, match="save of step 2"):
        train()


@pytest.mark.parametrize("wrong", [{"on_save_error": "stop"}, {"timeout_seconds": 0}, {"timeout_seconds": math.nan}])
def test_wrong_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        holdfast.session(tmp_path, **wrong)


def test_notes_come_back_with_the_checkpoint_they_belong_to(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, keep=holdfast.keep_all(), every=holdfast.every_steps(1)) as run:
        found, _ = run.restore(state)
        assert run.metadata == {}
        for step in run.steps(until=3):
            run.commit(step, found, metadata=CONFIG | {"step": step} if step < 3 else None)
    assert holdfast.load(tmp_path, step=2).metadata == CONFIG | {"step": 2}
    assert holdfast.load(tmp_path).metadata == {}
    with holdfast.session(tmp_path) as run:
        run.restore(state, step=1)
        assert run.metadata == CONFIG | {"step": 1}
    with holdfast.Checkpointer(tmp_path / "own", state()) as checkpointer:
        checkpointer.save(1, model=state(), metadata=CONFIG)
    with holdfast.Checkpointer(tmp_path / "own", state()) as checkpointer:
        assert checkpointer.restore() == 1
        assert checkpointer.metadata == CONFIG


def test_damaged_notes_are_damage(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
        found, _ = run.restore(state)
        for step in run.steps(until=2):
            run.commit(step, found, metadata=CONFIG)
    note = tmp_path / "default" / "1" / "2" / METADATA_FILE
    note.write_bytes(note.read_bytes().replace(b"0.1", b"0.2"))
    loaded = holdfast.load(tmp_path)
    assert (loaded.step, loaded.metadata) == (1, CONFIG)
    assert METADATA_FILE in loaded.rejected[0].reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_json_keeps_is_kept(noted: dict[str, Any]) -> None:
    data = metadata.to_bytes(noted)
    assert (data is None) == (not noted)
    assert data is None or json.loads(data) == noted


@pytest.mark.parametrize("noted", [{"a": math.nan}, {"a": {1, 2}}, {"a": (1, 2)}, {1: "a"}, {"a": jnp.ones(2)}])
def test_what_json_changes_is_refused(noted: dict[Any, Any]) -> None:
    with pytest.raises(TypeError, match="metadata: found"):
        metadata.to_bytes(noted)


def test_notes_have_a_limit() -> None:
    with pytest.raises(ValueError, match="metadata: found"):
        metadata.to_bytes({"a": "x" * metadata.MAX_BYTES})
