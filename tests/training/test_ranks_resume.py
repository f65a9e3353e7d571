"""A run that was interrupted ends with exactly the bits of one that was not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast_contract.runfolder import RunFolder
from tests.support.training.ranks import world

STEPS = ("--steps", "40", "--every", "5")


def digest_of(folder: Path, *arguments: str, count: int = 2) -> str:
    with world(folder, *STEPS, *arguments, count=count) as ranks:
        assert ranks.codes() == [0] * count, ranks[0].output[-3000:]
        digests = {rank.wait_for(r"digest (\w+)").group(1) for rank in ranks.ranks}
    assert len(digests) == 1
    return digests.pop()


def test_two_processes_resume_bit_for_bit_after_a_kill(tmp_path: Path) -> None:
    uninterrupted = digest_of(tmp_path / "whole")
    with world(tmp_path / "broken", *STEPS, "--do", "kill:0:23") as ranks:
        ranks.codes()
    assert RunFolder(tmp_path / "broken" / "run").candidates()[0].step in {15, 20}
    with world(tmp_path / "broken", *STEPS) as ranks:
        assert ranks.codes() == [0, 0]
        assert ranks[0].wait_for(r"restored 1 (\d+)").group(1) in {"15", "20"}
        resumed = ranks[1].wait_for(r"digest (\w+)").group(1)
    assert resumed == uninterrupted
    assert digest_of(tmp_path / "skipped", "--skip-batch", "30") != uninterrupted


def test_one_process_alone_resumes_bit_for_bit(tmp_path: Path) -> None:
    uninterrupted = digest_of(tmp_path / "whole", count=1)
    with world(tmp_path / "broken", *STEPS, "--do", "kill:0:23", count=1) as ranks:
        assert ranks.codes() == [-9]
    assert digest_of(tmp_path / "broken", count=1) == uninterrupted
    assert RunFolder(tmp_path / "broken" / "run").candidates()[0].attempt == 2


def test_a_save_goes_on_while_the_main_thread_runs_collectives(tmp_path: Path) -> None:
    arguments = ("--steps", "3", "--save-at", "2", "--size", "8000000", "--collectives-after", "200")
    with world(tmp_path, *arguments) as ranks:
        assert ranks.codes() == [0, 0]
    assert [ref.step for ref in RunFolder(tmp_path / "run").candidates()] == [3, 2]


@pytest.mark.parametrize("folders", [["compiled-0", "compiled-1"], ["shared"]], ids=["each its own", "the user's"])
def test_a_rank_that_comes_back_finds_its_compiled_programs(tmp_path: Path, folders: list[str]) -> None:
    of_the_user = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "shared")} if folders == ["shared"] else {}

    def programs_after_training(steps: int) -> list[Path]:
        """Of the steps; smaller programs are written or not, as it took time to compile them."""
        with world(tmp_path, "--steps", str(steps), share_compiled=False, **of_the_user) as ranks:
            assert ranks.codes() == [0, 0], ranks[0].output[-3000:]
        return sorted(tmp_path.glob("*/jit_train_step-*-cache"))

    first = programs_after_training(2)
    assert len(first) == 2, "on CPU every rank has keys of its own, and writes them"
    assert sorted({path.parent.name for path in first}) == folders
    assert programs_after_training(4) == first, "a rank had to compile again"


def test_half_a_compiled_program_is_told_and_replaced(tmp_path: Path) -> None:
    """As a kill or a full disk leaves it where programs are written in place."""

    def trained(steps: int) -> str:
        with world(tmp_path, "--steps", str(steps), count=1, share_compiled=False) as ranks:
            assert ranks.codes() == [0], ranks[0].output[-3000:]
            return ranks[0].output

    trained(2)
    (entry,) = tmp_path.glob("compiled-0/jit_train_step-*-cache")
    whole = entry.stat().st_size
    os.truncate(entry, whole // 2)
    assert "Error reading persistent compilation cache entry" in trained(4)
    assert entry.stat().st_size > 0.9 * whole
    assert not [path for path in entry.parent.iterdir() if not path.name.endswith("-cache")]
