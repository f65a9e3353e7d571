"""Which checkpoint two training processes go on from, told by what both do: given, best, walked back, refused, poison."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.keys import ENV_CHECKPOINT_POLICY, ENV_POISON_AFTER
from holdfast_contract.manifest import Rejection
from holdfast_contract.runfolder import RunFolder
from tests.support.training.ranks import World, world

KEEP_ALL = {ENV_CHECKPOINT_POLICY: '{"every": {"steps": 5}, "keep": {"latest": 50}}'}
CRASH_AFTER_RESTORE = ("--steps", "40", "--do", "raise:1:21")
"""One rank fails in the first step after step 20, before it has saved anything."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes committed steps 5, 10, 15 and 20."""
    folder = tmp_path_factory.mktemp("trained")
    with world(folder, "--steps", "20", **KEEP_ALL) as ranks:
        assert ranks.codes() == [0, 0]
    assert [ref.step for ref in RunFolder(folder / "run").candidates()] == [20, 15, 10, 5]
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of these checkpoints."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path


def begun(ranks: World) -> int:
    """The step that both ranks went on from."""
    steps = {int(rank.wait_for(r"restored \d+ (\d+)").group(1)) for rank in ranks.ranks}
    assert len(steps) == 1, steps
    return steps.pop()


def rejections(ranks: World) -> tuple[Rejection, ...]:
    """What both ranks told their agents was refused."""
    told = []
    for rank in ranks.ranks:
        assert rank.agent is not None
        told.append(rank.agent.updates[-1].rejected)
    assert told[0] == told[1]
    return told[0]


def damage(folder: Path, step: int) -> None:
    files = [p for p in (folder / "run" / "1" / str(step) / "state").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 4
    largest.write_bytes(data)


def test_a_step_that_was_given(folder: Path) -> None:
    with world(folder, "--steps", "12", "--from-step", "10", **KEEP_ALL) as ranks:
        assert ranks.codes() == [0, 0]
        assert begun(ranks) == 10
    assert RunFolder(folder / "run").candidates()[0].step == 12


@pytest.mark.parametrize(("damaged", "expected"), [((), 10), ((10,), 15), ((10, 15), 5)])
def test_the_best_and_the_walk_back_from_it(folder: Path, damaged: tuple[int, ...], expected: int) -> None:
    for step in damaged:
        damage(folder, step)
    with world(folder, "--steps", "21", "--from-best", agents=True, **KEEP_ALL) as ranks:
        assert ranks.codes() == [0, 0]
        assert begun(ranks) == expected
        assert [r.step for r in rejections(ranks)] == list(damaged)


def test_the_newest_and_the_walk_back_from_it(folder: Path) -> None:
    damage(folder, 20)
    damage(folder, 15)
    with world(folder, "--steps", "21", agents=True, **KEEP_ALL) as ranks:
        assert ranks.codes() == [0, 0]
        assert begun(ranks) == 10
        assert [(r.step, "digest" in r.reason) for r in rejections(ranks)] == [(20, True), (15, True)]


def test_all_damaged_stops_both_with_every_reason(folder: Path) -> None:
    for step in (5, 10, 15, 20):
        damage(folder, step)
    with world(folder, "--steps", "21", agents=True, **KEEP_ALL) as ranks:
        assert ranks.codes() == [ExitCode.NO_VALID_CHECKPOINT] * 2
        assert [r.step for r in rejections(ranks)] == [20, 15, 10, 5]
        for rank in ranks.ranks:
            assert all(r.reason in rank.output for r in rejections(ranks))
    assert RunFolder(folder / "run").candidates()[0].attempt == 1, "nothing was begun over them"


def test_a_checkpoint_from_which_the_job_crashed_twice_is_skipped_by_both(folder: Path) -> None:
    skipping = KEEP_ALL | {ENV_POISON_AFTER: "2"}
    for _ in range(2):
        with world(folder, *CRASH_AFTER_RESTORE, **skipping) as ranks:
            assert ranks.codes() == [ExitCode.PEER_LOST, 1]
            assert begun(ranks) == 20
    with world(folder, "--steps", "21", agents=True, **skipping) as ranks:
        assert ranks.codes() == [0, 0]
        assert begun(ranks) == 15
        (refused,) = rejections(ranks)
    assert (refused.attempt, refused.step) == (1, 20)
    assert "poison: attempts 2, 3 continued from it" in refused.reason
    with world(folder, "--steps", "22", **skipping) as ranks:
        assert ranks.codes() == [0, 0]
        assert begun(ranks) == 21, "the attempt that came to something is gone on from"
