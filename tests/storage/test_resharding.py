"""A checkpoint of one world fills another: other meshes, other shardings, another number of processes; to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

import holdfast
from holdfast import errors
from holdfast.state.data_position import reinstate_elsewhere
from holdfast.store import UNPINNED
from holdfast_contract import keys
from tests.support.storage import reshard_tasks
from tests.support.storage.reshard_tasks import Layout, laid_out
from tests.support.storage.states import OWNER, store_at
from tests.support.storage.world import World

ALONE: Layout = ((1, 1), (None, None))
LAYOUTS: list[Layout] = [
    ((4, 1), ("a", None)),
    ((2, 2), ("b", "a")),
    ((1, 4), (None, "b")),
    ((2, 2), (None, ("a", "b"))),  # type: ignore[list-item]
    ((4, 1), (None, None)),
]
SAVE, RESTORE = (
    "tests.support.storage.reshard_tasks:save_laid_out",
    "tests.support.storage.reshard_tasks:restore_laid_out",
)


def test_layouts_fill_each_other(world: World, root: Path) -> None:
    for number, layout in enumerate(LAYOUTS):
        folder = root.with_name(f"layout-{number}")
        world.call(SAVE, folder, 1, layout)
        for attempt, other in enumerate((LAYOUTS * 2)[number + 1 : number + 3], start=2):
            assert world.call(RESTORE, folder, attempt, other) == [(True, True)] * 2, (layout, other)


def test_from_one_process_to_two_and_back(world: World, root: Path) -> None:
    reshard_tasks.save_laid_out(None, root, 1, ALONE)
    for attempt, layout in enumerate(LAYOUTS[:2], start=2):
        assert world.call(RESTORE, root, attempt, layout) == [(True, True)] * 2
    world.call(SAVE, root, 4, LAYOUTS[1])
    assert reshard_tasks.restore_laid_out(None, root, 5, ALONE) == (True, True)


class Stream:
    """A position of its own in each process."""

    def __init__(self) -> None:
        self.states: Any = None

    def get_state(self) -> Any:
        return self.states

    def set_state(self, state: Any) -> None:
        self.states = state


class MovableStream(Stream):
    def reposition(self, states: Sequence[Any]) -> None:
        self.states = list(states)


def test_data_positions_of_two_processes_are_not_given_to_one(
    world: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.call(SAVE, root, 1, LAYOUTS[0])
    monkeypatch.setenv(keys.ENV_JOB_UID, OWNER.job_uid)
    state = laid_out(ALONE)

    def restored(data: Any) -> Any:
        with holdfast.session(root.parent, run=root.name) as run:
            return run.restore(lambda: state, data)[1]

    with pytest.raises(errors.RestoreError, match=r"positions of 2 process\(es\), this run has 1, and Stream cannot"):
        restored(Stream())
    with pytest.raises(errors.RestoreError, match="restore was called without data"):
        restored(None)
    assert restored(MovableStream()).states == [{"process": 0}, {"process": 1}]


@pytest.mark.parametrize(("before", "now"), list(itertools.permutations([1, 2, 3], 2)))
def test_an_iterator_that_can_move_learns_all_positions_in_order(before: int, now: int) -> None:
    stored = [b'{"json": %d}' % rank for rank in range(before)]
    stream = MovableStream()
    reinstate_elsewhere(stream, stored, process_count=now, checkpoint="c")
    assert stream.states == list(range(before))
    reinstate_elsewhere(None, [None] * before, process_count=now, checkpoint="c")
    with pytest.raises(errors.RestoreError, match="holds no data position"):
        reinstate_elsewhere(stream, [*stored[:-1], None], process_count=now, checkpoint="c")


def test_a_shape_that_differs_names_the_leaf_whatever_the_layout(world: World, root: Path) -> None:
    world.call(SAVE, root, 1, LAYOUTS[0])
    with pytest.raises(errors.StructureMismatch, match=r"\['w'\]: the program expects array float32\[4,12\]"):
        store_at(root, 2).restore(UNPINNED, laid_out(ALONE) | {"w": jax.numpy.zeros((4, 12))})
