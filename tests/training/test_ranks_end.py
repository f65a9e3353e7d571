"""How training processes end: what is saved, with which code, and that the others follow."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from holdfast_contract.exits import FOLLOWER_CODES, ExitCode
from holdfast_contract.runfolder import RunFolder
from tests.support.training.ranks import world

PROMPT_SECONDS = 8.0


def newest_step(folder: Path) -> int:
    return RunFolder(folder / "run").candidates()[0].step


@pytest.mark.parametrize("victim", [0, 1])
def test_the_other_rank_follows_a_killed_one(tmp_path: Path, victim: int) -> None:
    with world(tmp_path, "--steps", "100000", "--step-seconds", "0.01") as ranks:
        ranks[1 - victim].wait_for(r"step 20\n")
        ranks[victim].process.send_signal(signal.SIGKILL)
        # Mostly at once. A collective may hide the end of a peer that said nothing; then the heartbeat's limit counts.
        code = ranks[1 - victim].process.wait(60)
    # JAX may abort (134, here as the signal) before Python learns of it when the coordinator itself dies.
    assert code in FOLLOWER_CODES or code == -signal.SIGABRT


def test_a_mistake_in_one_rank_ends_both_and_loses_no_save(tmp_path: Path) -> None:
    with world(tmp_path, "--save-at", "9", "--do", "raise:1:10") as ranks:
        ranks[1].wait_for("doing raise")
        codes = ranks.codes(PROMPT_SECONDS)
        assert re.search(r"RuntimeError: a mistake in the program", ranks[1].output)
    assert codes == [ExitCode.PEER_LOST, 1]
    assert newest_step(tmp_path) == 9


def test_exit_by_all_ranks_keeps_their_code_and_the_save_in_flight(tmp_path: Path) -> None:
    with world(tmp_path, "--save-at", "9", "--do", "exit:all:10") as ranks:
        assert ranks.codes() == [7, 7]
    assert newest_step(tmp_path) == 9


def test_exit_by_one_rank_keeps_its_code(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "100000", "--do", "exit:0:10") as ranks:
        assert ranks.codes()[0] == 7


def test_sigterm_to_one_rank_saves_on_all_and_stops(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "100000", "--step-seconds", "0.01") as ranks:
        ranks[0].wait_for(r"step 20\n")
        ranks[1].process.send_signal(signal.SIGTERM)
        assert ranks.codes() == [ExitCode.SAVED, ExitCode.SAVED]
        last = int(re.findall(r"step (\d+)\n", ranks[0].output)[-1])
    assert newest_step(tmp_path) == last


def test_the_end_waits_for_the_final_save(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "5", "--size", "4000000") as ranks:
        assert ranks.codes() == [0, 0]
    assert newest_step(tmp_path) == 5


@pytest.mark.parametrize(("do", "code"), [("raise:0:10", 1), ("exit:0:10", 7)])
def test_one_process_alone_loses_no_save_in_flight(tmp_path: Path, do: str, code: int) -> None:
    with world(tmp_path, "--save-at", "9", "--do", do, "--size", "8000000", count=1) as ranks:
        assert ranks.codes() == [code], ranks[0].output[-2000:]
    assert newest_step(tmp_path) == 9


def test_sigterm_to_a_process_alone_saves_and_stops(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "100000", "--step-seconds", "0.01", count=1) as ranks:
        ranks[0].wait_for(r"step 20\n")
        ranks[0].process.send_signal(signal.SIGTERM)
        assert ranks.codes() == [ExitCode.SAVED]
        last = int(re.findall(r"step (\d+)\n", ranks[0].output)[-1])
    assert newest_step(tmp_path) == last


def test_ranks_that_leave_the_loop_after_a_commit_save_it(tmp_path: Path) -> None:
    with world(tmp_path, "--save-at", "3", "--break-after", "all:9") as ranks:
        assert ranks.codes() == [0, 0], ranks[0].output[-3000:]
    assert newest_step(tmp_path) == 9


def test_ranks_that_leave_the_loop_in_mid_step_save_the_commit_before_to_the_bit(tmp_path: Path) -> None:
    with world(tmp_path, "--break-before", "all:9") as ranks:
        assert ranks.codes() == [0, 0], ranks[0].output[-3000:]
    assert newest_step(tmp_path) == 8
    digests = []
    for folder in (tmp_path, tmp_path / "whole"):
        with world(folder, "--steps", "12") as ranks:
            assert ranks.codes() == [0, 0]
            digests.append(re.findall(r"digest (\w+)", ranks[0].output))
    assert digests[0] == digests[1] != []


def test_ranks_that_commit_differently_are_both_named_and_save_nothing(tmp_path: Path) -> None:
    with world(tmp_path, "--save-at", "3", "--break-after", "all:9", "--forget-commit", "1:9") as ranks:
        assert ranks.codes(PROMPT_SECONDS + 60) == [ExitCode.USAGE, ExitCode.USAGE]
        for rank in ranks.ranks:
            assert re.search(
                r"RanksDisagree: .*step 9 committed .*on process 0, step 8 committed .*on process 1", rank.output
            )
    assert newest_step(tmp_path) == 3
