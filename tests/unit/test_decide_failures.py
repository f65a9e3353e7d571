"""The operator counts failures and the time they happened in, and every attempt is told: from decision to interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.training.config import SessionArguments, resolve_config
from holdfast_agent import trainer_environment
from holdfast_agent.agent_settings import from_environment
from holdfast_contract import keys
from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause
from holdfast_contract.sync import Directive, FailureHistory
from holdfast_operator.decide import failure_history
from tests.support.operator.decide_parts import spec
from tests.support.operator.decide_world import World

AGENT = {
    keys.ENV_CONTROL_URL: "https://h:8443",
    keys.ENV_CONTROL_CA: "pem",
    keys.ENV_TOKEN_FILE: "/token",
    keys.ENV_REPLICA_INDEX: "0",
    keys.ENV_JOB_NAME: "job",
    keys.ENV_JOB_NAMESPACE: "ns",
    keys.ENV_CHECKPOINT_PATH: "/checkpoints",
    keys.ENV_RUN: "r",
    keys.ENV_CHECKPOINT_POLICY: '{"every": {"adaptive": {"minSeconds": 1, "maxSeconds": 100000}}}',
}


def trained() -> World:
    world = World(spec=spec(recovery={"maxFailures": 100, "noProgressLimit": 1000}))
    world.settle(world.training)
    return world


def told(world: World) -> FailureHistory:
    """What the trainers of the active attempt are told; the same to each of them."""
    (history,) = {d.history for d in world.directives.values()}
    assert history is not None
    return history


def crash(world: World, code: int = 1) -> None:
    attempt = world.status.attempt
    world.crash(1, code)
    world.settle(lambda: world.status.attempt == attempt + 1 and world.training())


def interval_seconds(directive: Directive) -> float:
    """The interval that a trainer started on this directive keeps, if a save holds its loop for a second."""
    variables = trainer_environment.for_trainer(from_environment(["--", "c"], AGENT), AGENT, directive)
    where = resolve_config(SessionArguments(), variables)
    assert isinstance(where.every, type(holdfast.adaptive(min_seconds=1, max_seconds=2)))
    return where.every.interval_seconds(1.0, 1.0, where.history)


def test_each_attempt_is_told_how_often_training_failed_and_in_how_many_seconds() -> None:
    world = trained()
    assert told(world) == FailureHistory(0, 0.0)
    world.run(30)
    assert told(world) == FailureHistory(0, 0.0), "an attempt is told once what was before it"
    tags = {d.tag for d in world.directives.values()}
    crash(world)
    first = told(world)
    assert first.failures == 1
    assert 25 <= first.running_seconds <= 35
    assert tags != {d.tag for d in world.directives.values()}
    world.run(20)
    crash(world, 137)
    assert told(world).failures == 2
    assert told(world).running_seconds >= first.running_seconds + 15
    assert world.status.failures.count == 2


def test_an_interval_shrinks_when_failures_happen_and_grows_when_they_do_not() -> None:
    world = trained()
    intervals = [interval_seconds(next(iter(world.directives.values())))]
    for _ in range(3):
        crash(world)
        intervals.append(interval_seconds(next(iter(world.directives.values()))))
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[-1] < 0.6 * intervals[0]
    world.run(20, seconds=7200.0)
    stopped = world.status.attempt
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.run(6)
    world.spec = world.spec.model_copy(update={"suspend": False})
    world.settle(lambda: world.status.attempt > stopped and world.training())
    assert told(world).failures == 3
    assert interval_seconds(next(iter(world.directives.values()))) > intervals[-1]


def test_a_move_that_loses_no_step_is_no_failure() -> None:
    world = trained()
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert told(world).failures == 0


def test_a_preemption_without_a_save_is_a_failure() -> None:
    world = trained()
    world.run(5)
    world.saving = False
    world.taint(world.node_of(1), "ToBeDeletedByClusterAutoscaler")
    world.settle(lambda: world.status.restarts_total == 1 and world.training(), passes=200)
    assert world.status.restarts == {"Preemption": 1}
    assert told(world).failures == 1


def test_a_worker_that_was_told_to_end_and_saved_has_not_failed() -> None:
    world = trained()
    world.run(3)
    agent = world.agent(1)
    step = max(world.agent(i).report.progress.last_completed_step for i in (0, 1) if world.agent(i).report.progress)
    for index in (0, 1):
        world.agent(index).say(world.now, progress=replace(agent.report.progress, last_completed_step=step))
    world.commit(step)
    world.reconcile()
    world.crash(0, int(ExitCode.SAVED))
    world.crash(1, int(ExitCode.SAVED))
    world.settle(lambda: world.status.attempt == 2 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert told(world).failures == 0


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("lost_steps", [0, 7])
def test_only_what_was_asked_for_or_saved_in_time_is_no_failure(cause: Cause, lost_steps: int) -> None:
    known = trained().status
    prepared = cause is Cause.USER_REQUEST or (cause in {Cause.PREEMPTION, Cause.EVICTED} and not lost_steps)
    assert failure_history.after_end(known, cause, lost_steps=lost_steps).count == (0 if prepared else 1)


@settings(max_examples=25, deadline=None)
@given(lives=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_the_count_is_that_of_the_crashes_and_the_seconds_those_of_running(lives: list[int]) -> None:
    world = trained()
    before = told(world)
    for number, passes in enumerate(lives, start=1):
        world.run(passes)
        crash(world)
        now = told(world)
        assert now.failures == number
        assert now.running_seconds >= before.running_seconds
        life = (world.now - world.status.start_time).total_seconds() if world.status.start_time else 0.0
        assert now.running_seconds <= life + 1.0, "no more than the job has lived"
        before = now
    stored = world.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert TrainingJobStatus.model_validate(stored).failures == world.status.failures
