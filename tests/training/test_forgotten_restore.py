"""A program that does not restore does not train over a run's checkpoints; one that starts over on purpose keeps the last."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import holdfast
from holdfast import errors
from holdfast.training.config import SessionArguments, resolve_config
from holdfast_contract import codec, keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder

ALL = holdfast.keep_all()


def start() -> dict[str, Any]:
    return {"n": jnp.int32(0)}


def train(where: Path, until: int, **arguments: Any) -> int:
    """Train and save every step; the step that this attempt continued from."""
    with holdfast.session(where, every=holdfast.every_steps(1), **arguments) as run:
        state, _ = run.restore(start)
        begun = int(state["n"])
        for step in run.steps(until=until):
            run.commit(step, {"n": jnp.int32(step)})
    return begun


def stored(where: Path) -> list[tuple[int, int]]:
    return sorted((ref.attempt, ref.step) for ref in RunFolder(where / "default").candidates())


FIRST_CALLS = {
    "steps": lambda run: next(iter(run.steps(until=9))),
    "commit": lambda run: run.commit(0, start()),
    "request_save": lambda run: run.request_save(),
}


@pytest.mark.parametrize("call", FIRST_CALLS)
def test_the_first_call_of_a_session_is_refused(tmp_path: Path, call: str) -> None:
    train(tmp_path, until=3)

    def forget() -> None:
        with holdfast.session(tmp_path) as run:
            FIRST_CALLS[call](run)

    with pytest.raises(errors.RestoreForgotten) as caught:
        forget()
    assert (caught.value.newest.attempt, caught.value.newest.step) == (1, 3)
    for part in (str(tmp_path / "default"), "attempt 1, step 3", "run.restore(", "session(fresh=True)"):
        assert part in str(caught.value)
    assert train(tmp_path, until=3) == 3, "nothing is lost"


def test_the_first_save_of_an_object_is_refused(tmp_path: Path) -> None:
    with holdfast.Checkpointer(tmp_path, start()) as checkpointer:
        checkpointer.save(5, model=start())
    with holdfast.Checkpointer(tmp_path, start()) as checkpointer:
        with pytest.raises(errors.RestoreForgotten, match=r"attempt 1, step 5.*checkpointer\.restore\(\)"):
            checkpointer.save(1, model=start())
        assert checkpointer.restore() == 5
        checkpointer.save(6, model=start())
    assert stored(tmp_path) == [(1, 5), (2, 6)]


def test_a_restore_that_failed_restored_nothing(tmp_path: Path) -> None:
    train(tmp_path, until=1)
    with holdfast.session(tmp_path) as run:
        with pytest.raises(errors.StructureMismatch):
            run.restore(lambda: {"other": jnp.int32(0)})
        with pytest.raises(errors.RestoreForgotten):
            run.commit(0, start())


def test_a_damaged_checkpoint_counts_too(tmp_path: Path) -> None:
    train(tmp_path, until=1)
    (tmp_path / "default/1/1/HOLDFAST.json").write_bytes(b"{")
    with holdfast.Checkpointer(tmp_path, start()) as checkpointer, pytest.raises(errors.RestoreForgotten):
        checkpointer.save(1, model=start())


def test_a_new_run_needs_no_restore(tmp_path: Path) -> None:
    with holdfast.session(tmp_path) as run:
        for step in run.steps(until=2):
            run.commit(step, start())
    with holdfast.Checkpointer(tmp_path / "object", start()) as checkpointer:
        checkpointer.save(1, model=start())


def test_where_nothing_may_be_restored_nothing_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, until=3)
    monkeypatch.setenv(keys.ENV_PIN, "none")
    with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
        for step in run.steps(until=8):
            run.commit(step, start())
    assert stored(tmp_path) == [(1, 2), (1, 3), (2, 6), (2, 7), (2, 8)]


def test_a_pin_is_what_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, until=3)
    monkeypatch.setenv(keys.ENV_PIN, codec.encode(CheckpointRef(1, 2)).decode())
    with holdfast.session(tmp_path) as run, pytest.raises(errors.RestoreForgotten, match="attempt 1, step 2"):
        next(iter(run.steps(until=8)))


def test_starting_over_on_purpose_keeps_the_last_two_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, until=9)
    assert stored(tmp_path) == [(1, 7), (1, 8), (1, 9)]
    with caplog.at_level(logging.INFO, "holdfast"):
        assert train(tmp_path, until=6, fresh=True) == 0
    said = [record.message for record in caplog.records if "fresh=True" in record.message]
    assert len(said) == 1
    assert "attempt 1, step 9" in said[0]
    assert stored(tmp_path) == [(1, 8), (1, 9), (2, 4), (2, 5), (2, 6)]
    assert train(tmp_path, until=12) == 6, "without `fresh` the new lineage goes on"
    assert stored(tmp_path) == [(1, 8), (1, 9), (2, 6), (3, 10), (3, 11), (3, 12)]
    train(tmp_path, until=4, fresh=True)
    assert stored(tmp_path) == [(1, 8), (1, 9), (3, 11), (3, 12), (4, 2), (4, 3), (4, 4)]


def test_a_damaged_one_does_not_count_among_the_last(tmp_path: Path) -> None:
    train(tmp_path, until=4)
    files = [path for path in (tmp_path / "default/1/4/state").rglob("*") if path.is_file()]
    data = max(files, key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1])
    train(tmp_path, until=6, fresh=True)
    assert stored(tmp_path)[:2] == [(1, 2), (1, 3)]


def test_without_a_restore_starting_over_is_the_same(tmp_path: Path) -> None:
    train(tmp_path, until=3)
    with holdfast.session(tmp_path, fresh=True, every=holdfast.every_steps(1)) as run:
        for step in run.steps(until=8):
            run.commit(step, start())
    assert stored(tmp_path)[:2] == [(1, 2), (1, 3)]
    with holdfast.Checkpointer(tmp_path, start(), fresh=True) as checkpointer:
        assert checkpointer.restore() == 0
        checkpointer.save(1, model=start())


def test_attempts_that_continue_leave_nothing_behind(tmp_path: Path) -> None:
    train(tmp_path, until=3)
    train(tmp_path, until=9)
    assert stored(tmp_path) == [(1, 3), (2, 7), (2, 8), (2, 9)]
    train(tmp_path, until=12)
    assert stored(tmp_path) == [(2, 9), (3, 10), (3, 11), (3, 12)]


def test_starting_over_and_restoring_a_step_exclude_each_other(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, fresh=True) as run, pytest.raises(ValueError, match="`fresh` is set"):
        run.restore(start, step=3)
    for made in (holdfast.session, holdfast.Checkpointer):
        with pytest.raises(ValueError, match="fresh: found 1, allowed: True"):
            made(tmp_path, *([] if made is holdfast.session else [start()]), fresh=1)  # type: ignore[operator]
    assert resolve_config(SessionArguments(path="/p", fresh=True), {}).fresh
