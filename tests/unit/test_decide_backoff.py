"""Failures in a row: the next attempt waits longer each time, unless a step was completed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Condition, Reason
from holdfast_contract.sync import TrainerPhase
from holdfast_operator.decide import conditions
from tests.support.operator.decide_parts import spec
from tests.support.operator.decide_world import World


def trained(**changes: object) -> World:
    world = World(spec=spec(**changes))
    world.settle(world.training)
    world.run(3)
    return world


def fail_at_start(world: World, code: int) -> None:
    """The active attempt's trainers start, and one ends before any step."""
    for index in (0, 1):
        attempt = world.status.active_attempt
        world.agent(index).say(world.now, attempt=attempt, phase=TrainerPhase.STARTING, exit=None, progress=None)
    world.crash(0, code)


def fail_for(world: World, seconds: float, code: int) -> int:
    """Every attempt that begins within so many seconds fails before its first step; the number of failures."""
    until, seen, failures = world.now + timedelta(seconds=seconds), 0, 0
    while world.now < until and not conditions.finished(world.status):
        if seen < world.status.active_attempt == world.status.attempt:
            seen, failures = world.status.active_attempt, failures + 1
            fail_at_start(world, code)
        world.reconcile()
        world.tick(0.5)
    return failures


@pytest.mark.parametrize("minutes", [0.3, 2, 5])
def test_storage_outage_of_minutes_is_survived_in_few_attempts(minutes: float) -> None:
    world = trained()
    failures = fail_for(world, minutes * 60, int(ExitCode.STORAGE))
    assert not conditions.finished(world.status)
    assert failures <= 7
    world.settle(world.training, passes=700)
    assert set(world.status.restarts) == {"StorageError"}


def test_second_failure_in_a_row_waits_and_the_condition_says_until_when() -> None:
    world = trained(recovery={"noProgressLimit": 100})
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt == 2)
    fail_at_start(world, 1)
    before = world.now
    world.settle(lambda: world.status.active_attempt == 3)
    assert (world.now - before).total_seconds() <= 2, "the first one without a step is free"
    fail_at_start(world, 1)
    before = world.now
    world.settle(lambda: world.status.attempt == 4)
    world.reconcile()
    shown = conditions.get(world.status, Condition.RUNNING)
    assert shown is not None
    assert "2 attempts in a row completed no step: the next begins not before 2026-01-01T00:" in shown.message
    world.settle(lambda: world.status.active_attempt == 4)
    assert 10 <= (world.now - before).total_seconds() <= 15


def test_attempts_that_made_a_step_restart_at_once() -> None:
    world = trained(recovery={"noProgressLimit": 100, "maxFailures": 100})
    for number in range(2, 12):
        world.run(2)
        before = world.now
        world.crash(0, 1)
        world.settle(lambda n=number: world.status.active_attempt == n)  # type: ignore[misc]
        assert (world.now - before).total_seconds() <= 2
        world.settle(world.training)


def test_wrong_command_fails_fast_and_says_what_it_did() -> None:
    world = World()
    world.settle(lambda: world.status.active_attempt == 1)
    began = world.now
    fail_for(world, 60, 2)
    assert conditions.finished(world.status)
    assert (world.now - began).total_seconds() <= 30
    failed = conditions.get(world.status, Condition.FAILED)
    assert failed is not None
    assert failed.reason == Reason.NO_PROGRESS
    assert "exited with code 2" in failed.message
