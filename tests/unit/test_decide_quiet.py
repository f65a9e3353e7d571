"""Quiet passes and waits that end: what a job costs while nothing happens, and what a frozen agent may hold up."""

from __future__ import annotations

from datetime import timedelta

from holdfast_contract.reasons import Reason
from holdfast_contract.sync import TrainerPhase
from tests.support.operator.decide_world import World, spec


def trained() -> World:
    world = World()
    world.settle(world.training)
    world.run(5)
    return world


def writes(world: World, passes: int) -> int:
    """How many of so many passes, a second apart, write the status."""
    count = 0
    for _ in range(passes):
        before = world.status
        world.reconcile()
        count += world.status is not before
        world.tick(1)
    return count


def test_a_frozen_agent_holds_up_a_preparation_for_minutes_not_for_ever() -> None:
    world = trained()
    world.commit(3)
    world.agent(1).silent = True
    world.run(40)
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt > 1 and world.training(), passes=600)


def test_a_new_operator_blames_the_worker_that_fell_silent_before_its_term() -> None:
    world = trained()
    world.commit(5)
    world.run(3)
    world.agent(1).silent = True
    world.run(5)
    world.crash(0, 134)
    for second in range(200):
        if second == 45:
            world.restart_operator()
            world.tick(1)
        world.reconcile()
        world.tick(1)
        if world.status.last_end is not None:
            break
    assert world.status.restarts == {"PodLost": 1}
    world.settle(lambda: world.status.active_attempt == 2, passes=300)


def test_a_cordon_that_stands_for_long_gets_a_save_with_time_in_every_attempt() -> None:
    world = trained()
    for node in sorted(world.nodes):
        world.cordon(node)
    world.run(400)
    seen = len(world.events)
    world.crash(0, 1)
    world.run(12)
    reasons = {event.reason for event in world.events[seen:]}
    assert Reason.PREEMPTION_SAVE_FAILED not in reasons
    assert Reason.PREEMPTION_SAVED in reasons or Reason.PREEMPTION_ALREADY_FRESH in reasons


def test_a_restart_is_not_looked_at_ten_times_a_second_until_its_first_step() -> None:
    world = trained()
    world.run(40)
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt == 2)
    for agent in world.agents.values():
        agent.say(world.now, phase=TrainerPhase.STARTING, progress=None)
    world.now += timedelta(seconds=35)
    for agent in world.agents.values():
        agent.say(world.now, phase=TrainerPhase.STARTING, progress=None)
    plans = [world.reconcile() for _ in range(3)]
    assert plans[-1].requeue_after_seconds > 1


def test_a_silent_worker_0_costs_no_write_in_every_pass() -> None:
    world = trained()
    world.agent(0).silent = True
    assert writes(world, 80) <= 4


def test_a_released_job_that_another_finalizer_holds_is_left_alone() -> None:
    world = World(spec=spec(activeDeadlineSeconds=100))
    world.settle(world.training)
    world.now += timedelta(seconds=90)
    world.deleted_at = world.now
    world.run(30)
    assert not world.pods
    assert world.reconcile().requeue_after_seconds >= 60
