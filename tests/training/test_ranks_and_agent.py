"""What a trainer tells its agent, and that neither the agent nor storage can hold training up."""

from __future__ import annotations

import re
import time
from pathlib import Path

from holdfast_contract.exits import ExitCode
from holdfast_contract.local import TrainerUpdate
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Bucket, SaveOutcome
from holdfast_contract.runfolder import RunFolder
from tests.support.training.ranks import World, world

CLOCK_TICK_SECONDS = 0.02
"""The system says in ticks of 0.01 s when a process began."""
SELDOM = 300
"""Steps between saves; three of them that fail in a row would end training."""
ENDLESS = ("--steps", "100000", "--step-seconds", "0.01")


def completed(update: TrainerUpdate) -> int:
    return update.progress.last_completed_step if update.progress else 0


def test_an_agent_hears_everything_and_may_come_back(tmp_path: Path) -> None:
    before_start = time.monotonic()
    with world(tmp_path, *ENDLESS, agents=True, attempt=4, count=1) as ranks:
        after_start = time.monotonic()
        agent = ranks[0].agent
        assert agent is not None
        update = agent.wait_for(lambda u: completed(u) >= 20)
        assert agent.hello is not None
        assert (agent.hello.attempt, agent.hello.pid) == (4, ranks[0].process.pid)
        assert update.restore_done
        assert update.restored is None
        assert update.progress is not None
        assert update.progress.total_steps == 100_000
        assert 0.005 < (update.progress.step_seconds or 0) < time.monotonic() - before_start
        assert "loss" in update.progress.metrics
        agent.drop()
        last = completed(agent.updates[-1])
        agent.wait_for(lambda u: completed(u) > last + 20)
        before_stop = time.monotonic()
        agent.save("stop", 20.0, stop=True)
        assert ranks.codes() == [ExitCode.SAVED]
        after_end = time.monotonic()
        final = agent.wait_for(lambda u: any(r.outcome is SaveOutcome.COMMITTED for r in u.saves))
    (report,) = final.saves
    assert report.checkpoint == final.newest == RunFolder(tmp_path / "run").candidates()[0]
    # The process began and sent this update between readings of this clock, whatever else the machine had to do.
    assert before_stop - after_start - CLOCK_TICK_SECONDS < sum(final.buckets.values())
    assert sum(final.buckets.values()) < after_end - before_start + CLOCK_TICK_SECONDS
    assert set(final.buckets) <= {bucket.value for bucket in Bucket}
    assert final.buckets["productive"] > 0.4


def test_training_goes_on_without_storage_and_says_so(tmp_path: Path) -> None:
    attempt = tmp_path / "run" / "1"
    with world(tmp_path, *ENDLESS, "--every", str(SELDOM), agents=True) as ranks:
        ranks[0].wait_for(f"step {SELDOM} is committed")
        attempt.rename(tmp_path / "away")
        attempt.write_text("a file where a folder was")
        broken = [rank.agent.wait_for(lambda u: bool(u.storage_error)) for rank in ranks.ranks if rank.agent]
        assert all(str(attempt) in update.storage_error for update in broken)
        _wait_for_steps(ranks, 60)
        attempt.unlink()
        (tmp_path / "away").rename(attempt)
        for rank in ranks.ranks:
            assert rank.agent is not None
            healed = rank.agent.wait_for(lambda u: not u.storage_error and u.newest != CheckpointRef(1, SELDOM))
            assert healed.newest is not None
            rank.agent.save("stop", 20.0, stop=True)
        assert ranks.codes() == [ExitCode.SAVED, ExitCode.SAVED]
    steps = [ref.step for ref in RunFolder(tmp_path / "run").candidates()]
    assert SELDOM in steps or len(steps) == 3


def test_ranks_that_cannot_save_any_more_end_with_that_error(tmp_path: Path) -> None:
    with world(tmp_path, *ENDLESS, "--every", "25") as ranks:
        ranks[0].wait_for("step 25 is committed")
        (tmp_path / "run" / "1").rename(tmp_path / "away")
        (tmp_path / "run" / "1").write_text("")
        codes = ranks.codes()
    assert ExitCode.STORAGE in codes
    assert set(codes) <= {ExitCode.STORAGE, ExitCode.PEER_LOST}


def test_a_final_save_that_fails_is_the_outcome(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "60", "--step-seconds", "0.02") as ranks:
        ranks[0].wait_for(r"step 20\n")
        (tmp_path / "run" / "1").rename(tmp_path / "away")
        (tmp_path / "run" / "1").write_text("")
        codes = ranks.codes()
        assert re.search("SaveError", ranks[0].output)
    assert codes == [ExitCode.STORAGE, ExitCode.STORAGE]


def test_damaged_checkpoints_are_never_replaced_by_a_fresh_start(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "3", count=1) as ranks:
        assert ranks.codes() == [0]
    (candidate,) = RunFolder(tmp_path / "run").candidates()
    files = [f for f in (tmp_path / "run" / "1" / "3" / "state").rglob("*") if f.is_file()]
    largest = max(files, key=lambda f: f.stat().st_size)
    largest.write_bytes(b"\0" * largest.stat().st_size)
    with world(tmp_path, "--steps", "3", count=1, agents=True) as ranks:
        assert ranks.codes() == [ExitCode.NO_VALID_CHECKPOINT]
        agent = ranks[0].agent
        assert agent is not None
        (rejection,) = agent.updates[-1].rejected
    assert (rejection.attempt, rejection.step) == (candidate.attempt, candidate.step)
    assert largest.name in rejection.reason


def _wait_for_steps(ranks: World, more: int) -> None:
    agent = ranks[0].agent
    assert agent is not None
    now = completed(agent.updates[-1])
    agent.wait_for(lambda u: completed(u) >= now + more)
