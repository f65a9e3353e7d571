"""A training that cannot save any more ends; one whose saves fail now and then goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import holdfast
from holdfast import errors
from holdfast.store.format import fs
from holdfast.training.saves import FAILED_IN_A_ROW


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    fs.set_fault_hook(None)


def full_disk(operation: str, path: Path) -> None:
    if operation == "before:sync-file":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def start() -> dict[str, Any]:
    return {"w": jnp.ones(3)}


def train(where: Path, failing: set[int], until: int) -> list[int]:
    """Save every step, each committed or failed before the next; the steps that ``commit`` accepted."""
    done: list[int] = []
    with holdfast.session(where, every=holdfast.every_steps(1)) as run:
        run.restore(start)
        for step in run.steps(until=until):
            fs.set_fault_hook(full_disk if step in failing else None)
            handle = run.commit(step, start())
            assert handle is not None
            assert handle.wait(30)
            done.append(step)
    return done


def test_three_failed_saves_in_a_row_end_training(tmp_path: Path) -> None:
    assert FAILED_IN_A_ROW == 3
    with pytest.raises(errors.SaveError, match="save of step 5") as caught:
        train(tmp_path, failing={3, 4, 5}, until=100)
    assert caught.value.step == 5
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [2, 1]


def test_a_save_that_succeeds_in_between_starts_the_count_anew(tmp_path: Path) -> None:
    assert train(tmp_path, failing={1, 2, 4, 5, 7, 8}, until=9) == list(range(1, 10))


@pytest.mark.parametrize("call", ["commit", "steps"])
def test_a_superseded_session_ends_at_its_next_call(tmp_path: Path, call: str) -> None:
    def superseded() -> None:
        with holdfast.session(tmp_path, every=holdfast.at_steps(2)) as run:
            run.restore(start)
            steps = run.steps(until=None)
            for _ in range(2):
                step = next(steps)
                if step == 2:
                    with holdfast.session(tmp_path) as newer:
                        newer.restore(start)
                handle = run.commit(step, start())
            assert handle is not None
            assert handle.wait(30)
            if call == "steps":
                next(steps)
            run.commit(2, start())

    with pytest.raises(errors.Superseded, match="attempt 2 has begun"):
        superseded()
