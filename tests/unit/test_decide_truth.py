"""What the status and the Events say is what happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause, Condition, Reason
from holdfast_contract.sync import Inspection, TrainerPhase
from holdfast_operator.decide import conditions
from holdfast_operator.decide.actions import Event
from tests.support.operator.decide_parts import spec
from tests.support.operator.decide_world import World


def trained() -> World:
    world = World()
    world.settle(world.training)
    world.run(3)
    return world


def event(world: World, reason: Reason) -> Event:
    (found,) = (e for e in world.events if e.reason is reason)
    return found


def test_worker_that_saved_and_stopped_has_not_crashed() -> None:
    world = trained()
    world.crash(0, int(ExitCode.SAVED))
    world.crash(1, int(ExitCode.SAVED))
    world.settle(lambda: world.status.restarts_total == 1)
    stopped = event(world, Reason.WORKER_STOPPED)
    assert stopped.type == "Normal"
    assert "stopped and saved" in stopped.message
    assert Reason.WORKER_CRASHED not in [e.reason for e in world.events]


def test_worker_that_stopped_without_a_save_is_a_warning() -> None:
    world = trained()
    world.crash(0, int(ExitCode.NOT_SAVED))
    world.settle(lambda: world.status.restarts_total == 1)
    assert event(world, Reason.WORKER_STOPPED).type == "Warning"


def test_storage_that_takes_no_save_leaves_it_open_whether_a_checkpoint_is_valid() -> None:
    world = trained()
    world.commit(2)
    world.reconcile()
    world.agent(0).say(world.now, storage_error="/checkpoints: no space left on device")
    world.run(2)
    shown = conditions.get(world.status, Condition.CHECKPOINT_VALID)
    assert shown is not None
    assert (shown.status, shown.reason) == ("Unknown", Reason.SAVE_FAILED)
    world.agent(0).say(world.now, storage_error="")
    world.run(2)
    assert conditions.holds(world.status, Condition.CHECKPOINT_VALID)


def test_job_that_fails_before_its_first_attempt_has_a_last_end() -> None:
    world = World(spec=spec(recovery={"maxFailures": 0}), inspection=Inspection(0, error="not yet"))
    world.settle(lambda: any(p.phase == "Running" for p in world.pods.values()))
    world.end_pod("job-1-0", 64)
    world.pods["job-1-0"] = replace(world.pods["job-1-0"], end=replace(world.pods["job-1-0"].end, message="no module"))  # type: ignore[type-var]
    world.settle(lambda: conditions.holds(world.status, Condition.FAILED))
    last = world.status.last_end
    assert last is not None
    assert (last.worker, last.exit_code, last.cause) == (1, 64, Cause.FAILURE)
    assert last.message.startswith("before its attempt began: ")
    assert last.last_lines == "no module"


@pytest.mark.parametrize("commits", [False, True])
def test_finished_training_counts_only_if_a_checkpoint_holds_it(commits: bool) -> None:
    world = trained()
    if commits:
        world.commit(3)
    for index in range(2):
        world.crash(index, 0)
    world.settle(lambda: conditions.finished(world.status))
    assert conditions.holds(world.status, Condition.SUCCEEDED) == commits
    assert conditions.holds(world.status, Condition.CHECKPOINT_VALID) == commits
    if not commits:
        failed = conditions.get(world.status, Condition.FAILED)
        assert failed is not None
        assert failed.reason == Reason.NO_VALID_CHECKPOINT
        assert "no checkpoint was ever committed" in failed.message
        assert world.status.last_end is not None


def test_program_that_reports_no_step_may_finish_without_a_checkpoint() -> None:
    world = World()
    world.settle(lambda: world.status.active_attempt == 1)
    for index in range(2):
        world.agent(index).say(world.now, attempt=1, phase=TrainerPhase.STARTING, progress=None)
        world.crash(index, 0)
    world.settle(lambda: conditions.finished(world.status))
    succeeded = conditions.get(world.status, Condition.SUCCEEDED)
    assert succeeded is not None
    assert succeeded.status == "True"
    assert "no step was reported, and no checkpoint exists" in succeeded.message
