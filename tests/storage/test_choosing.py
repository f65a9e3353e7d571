"""Which checkpoint a run goes on from: the newest, a step, the best, and not one that leads into a crash again."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import errors
from holdfast.store import UNPINNED, CheckpointExtras, Restored, Store, StoreSettings
from holdfast.store.format import fs
from holdfast.store.read.candidates import CheckpointChoice
from holdfast_contract.exits import ExitCode
from holdfast_contract.keys import RESTORED_FILE
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import QUICK, flip_bit, small_state, store_at
from tests.support.storage.world import World

LOSSES = {1: 0.5, 2: 0.1, 3: float("nan"), 4: 0.3}
SKIPPING = dataclasses.replace(QUICK, poison_after=3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempt 1 committed steps 1 to 4."""
    root = tmp_path_factory.mktemp("saved") / "char-lm"
    store = store_at(root, 1)
    for step, loss in LOSSES.items():
        store.save(step, small_state(step), CheckpointExtras(metrics={"loss": loss})).result(30)
    store.close()
    return root


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / saved.name)
    return tmp_path / saved.name


def _begun(root: Path, settings: StoreSettings = QUICK) -> Store:
    return store_at(root, RunFolder(root).highest_attempt() + 1, settings=settings)


def _restored(store: Store, choice: CheckpointChoice | None = None, pin: CheckpointRef | None = None) -> Restored:
    restored = store.restore(pin or UNPINNED, small_state(0), choice=choice or CheckpointChoice())
    assert restored is not None
    assert int(restored.state["step"]) == restored.ref.step
    return restored


def _crash_after_restoring(root: Path, times: int, settings: StoreSettings = QUICK) -> None:
    for _ in range(times):
        _restored(_begun(root, settings))


def test_a_step_or_the_best_below_the_pin(run: Path) -> None:
    assert _restored(_begun(run), CheckpointChoice(step=2)).ref.step == 2
    assert _restored(_begun(run), CheckpointChoice(best=("loss", "min"))).ref.step == 2
    assert _restored(_begun(run), CheckpointChoice(best=("loss", "max"))).ref.step == 1
    first = RunFolder(run).candidates()[-1]
    assert _restored(_begun(run), CheckpointChoice(best=("loss", "min")), pin=first).ref == first


def test_a_step_that_is_damaged_or_missing_has_no_substitute(run: Path) -> None:
    flip_bit(_largest(run / "1" / "2"))
    best = _restored(_begun(run), CheckpointChoice(best=("loss", "min")))
    assert (best.ref.step, [(r.step, "digest" in r.reason) for r in best.rejected]) == (4, [(2, True)])
    for step, reason in ((2, "digest"), (9, "no checkpoint of this step")):
        with pytest.raises(errors.NoValidCheckpoint, match=reason) as caught:
            _restored(_begun(run), CheckpointChoice(step=step))
        assert [r.step for r in caught.value.rejected] == [step]
    with pytest.raises(errors.NoValidCheckpoint, match="no finite value of the metric 'accuracy'"):
        _restored(_begun(run), CheckpointChoice(best=("accuracy", "max")))


def test_a_choice_in_an_empty_run(root: Path) -> None:
    assert store_at(root, 1).restore(UNPINNED, small_state(0), choice=CheckpointChoice(best=("loss", "min"))) is None
    with pytest.raises(errors.NoValidCheckpoint):
        store_at(root, 2).restore(UNPINNED, small_state(0), choice=CheckpointChoice(step=3))


@given(st.builds(lambda step, mode: (step, mode), st.integers(0, 9), st.text(max_size=4)))
def test_a_wrong_choice_is_refused(drawn: tuple[int, str]) -> None:
    step, mode = drawn
    with pytest.raises(ValueError, match="found both"):
        CheckpointChoice(step=step, best=("loss", "min"))
    if mode not in {"min", "max"}:
        with pytest.raises(ValueError, match="mode"):
            CheckpointChoice(best=("loss", mode))  # type: ignore[arg-type]


def test_a_checkpoint_that_led_into_three_crashes_is_skipped_with_the_attempts_named(run: Path) -> None:
    _crash_after_restoring(run, 3, SKIPPING)
    fourth = _restored(_begun(run, SKIPPING))
    assert fourth.ref.step == 3
    assert [(r.attempt, r.step) for r in fourth.rejected] == [(1, 4)]
    assert "poison: attempts 2, 3, 4" in fourth.rejected[0].reason
    _crash_after_restoring(run, 2, SKIPPING)
    assert _restored(_begun(run, SKIPPING)).ref.step == 2, "and then the one before it"
    assert _restored(_begun(run)).ref.step == 4, "off by default"
    assert _restored(_begun(run, SKIPPING), CheckpointChoice(step=4)).ref.step == 4, "asked for by name it is taken"


def test_when_every_candidate_is_poison_nothing_starts_from_scratch(run: Path) -> None:
    _crash_after_restoring(run, 12, SKIPPING)
    with pytest.raises(errors.NoValidCheckpoint) as caught:
        _restored(_begun(run, SKIPPING))
    assert [r.step for r in caught.value.rejected] == [4, 3, 2, 1]


def test_an_attempt_that_saved_or_ended_in_order_blames_nothing(run: Path) -> None:
    for number in range(4):
        store = _begun(run, SKIPPING)
        assert _restored(store).ref.step == 4 + (number > 1)
        note = run / str(2 + number) / RESTORED_FILE
        assert note.exists()
        if number == 1:
            store.save(5, small_state(5)).result(30)
            store.close()
        else:
            store.ended_in_order()
        assert not note.exists()
    assert _restored(_begun(run, SKIPPING)).ref.step == 5


def test_a_note_that_cannot_be_read_or_written_accuses_nobody(run: Path) -> None:
    _crash_after_restoring(run, 3)
    for attempt in (2, 3, 4):
        (run / str(attempt) / RESTORED_FILE).write_text("{")
    assert _restored(_begun(run, SKIPPING)).ref.step == 4

    def denied(point: str, path: Path) -> None:
        if RESTORED_FILE in path.name and point == "before:write":
            raise PermissionError(13, "no", str(path))

    fs.set_fault_hook(denied)
    try:
        assert _restored(_begun(run, SKIPPING)).ref.step == 4
    finally:
        fs.set_fault_hook(None)


@pytest.mark.parametrize("value", [-1, True, 2.5])
def test_a_wrong_limit_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="poison_after"):
        StoreSettings(poison_after=value)  # type: ignore[arg-type]


def test_a_session_goes_back_to_the_best_or_to_a_step(tmp_path: Path) -> None:
    def train(until: int, **choice: Any) -> tuple[int, list[float]]:
        with holdfast.session(tmp_path, run="r", every=holdfast.every_steps(1), keep=holdfast.keep_all()) as run:
            state, _ = run.restore(lambda: {"w": jnp.zeros(2)}, **choice)
            began = list(np.asarray(state["w"]))
            first = 0
            for step in run.steps(until):
                first = first or step
                state = {"w": state["w"] + 1}
                run.commit(step, state, metrics={"loss": abs(step - 2.0)})
        return first, began

    assert train(4) == (1, [0.0, 0.0])
    assert train(4, best=("loss", "min")) == (3, [2.0, 2.0])
    assert train(5, step=1) == (2, [1.0, 1.0])
    assert not list(tmp_path.rglob(RESTORED_FILE)), "each ended in order"
    assert train(6) == (6, [5.0, 5.0])


TASKS = "tests.support.storage.tasks"


@pytest.fixture(scope="module")
def saved_by_two(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes committed steps 1 to 4 in attempt 1."""
    root = tmp_path_factory.mktemp("by-two") / "char-lm"
    world.call(f"{TASKS}:save_steps", root, 1, list(LOSSES), LOSSES)
    return root


@pytest.fixture
def run_of_two(saved_by_two: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved_by_two, tmp_path / saved_by_two.name)
    return tmp_path / saved_by_two.name


def _chosen_by_both(
    world: World, root: Path, choice: CheckpointChoice, pin: CheckpointRef | None = None
) -> dict[str, Any]:
    """What both ranks were given; the same reasons on both, and each rank its own data."""
    attempt = RunFolder(root).highest_attempt() + 1
    told: list[dict[str, Any]] = world.call(f"{TASKS}:restore_choice", root, attempt, choice, pin)
    assert told[0]["ref"] == told[1]["ref"]
    assert told[0]["rejected"] == told[1]["rejected"]
    if told[0]["ref"] is not None:
        for rank, each in enumerate(told):
            assert each["equal"]
            assert each["data"] == f"rank {rank} step {each['ref'].step}".encode()
    return told[0]


def _largest(step: Path) -> Path:
    """Of the files with the state, which is small beside its manifest here."""
    return max((p for p in (step / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.parametrize(
    ("choice", "step"),
    [
        (CheckpointChoice(), 4),
        (CheckpointChoice(step=3), 3),
        (CheckpointChoice(step=1), 1),
        (CheckpointChoice(best=("loss", "min")), 2),
        (CheckpointChoice(best=("loss", "max")), 1),
    ],
    ids=["newest", "step 3", "step 1", "lowest loss", "highest loss"],
)
def test_two_processes_choose_alike(world: World, run_of_two: Path, choice: CheckpointChoice, step: int) -> None:
    told = _chosen_by_both(world, run_of_two, choice)
    assert told["ref"].step == step
    assert told["rejected"] == ()
    if choice == CheckpointChoice():
        pin = RunFolder(run_of_two).candidates()[1]
        assert _chosen_by_both(world, run_of_two, choice, pin)["ref"] == pin


@pytest.mark.parametrize(
    ("choice", "damaged", "step"),
    [
        (CheckpointChoice(), (4, 3), 2),
        (CheckpointChoice(best=("loss", "min")), (2,), 4),
        (CheckpointChoice(best=("loss", "max")), (1, 4), 2),
    ],
    ids=["newest", "lowest loss", "highest loss"],
)
def test_two_processes_walk_back_over_damage_alike(
    world: World, run_of_two: Path, choice: CheckpointChoice, damaged: tuple[int, ...], step: int
) -> None:
    for number in damaged:
        flip_bit(_largest(run_of_two / "1" / str(number)))
    told = _chosen_by_both(world, run_of_two, choice)
    assert told["ref"].step == step
    assert [(r.step, "digest" in r.reason) for r in told["rejected"]] == [(n, True) for n in damaged]


@pytest.mark.parametrize(
    ("choice", "refused"),
    [
        (CheckpointChoice(), [4, 3, 2, 1]),
        (CheckpointChoice(step=2), [2]),
        (CheckpointChoice(best=("loss", "min")), [2, 4, 1, 3]),
    ],
    ids=["newest", "step 2", "lowest loss"],
)
def test_two_processes_stop_loudly_when_all_are_damaged(
    world: World, run_of_two: Path, choice: CheckpointChoice, refused: list[int]
) -> None:
    for step in LOSSES:
        flip_bit(_largest(run_of_two / "1" / str(step)))
    told = _chosen_by_both(world, run_of_two, choice)
    assert told["ref"] is None
    assert told["code"] == ExitCode.NO_VALID_CHECKPOINT
    assert [r.step for r in told["rejected"]] == refused
    assert all(r.reason for r in told["rejected"])
    assert all(r.reason in told["error"] for r in told["rejected"])
