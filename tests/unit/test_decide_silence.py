"""Silence of agents: it counts from the beginning of this operator's term, and no condition outlives it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from holdfast_contract.reasons import Condition, Reason
from holdfast_operator.decide import conditions
from holdfast_operator.decide.facts import NodeCondition
from holdfast_operator.decide.members import SILENT_SECONDS
from tests.support.operator.decide_world import World


def trained() -> World:
    world = World()
    world.settle(world.training)
    world.run(5)
    return world


def cut_off(world: World, index: int) -> None:
    """The worker's kubelet has not reached the API server for a minute."""
    node = world.nodes[world.node_of(index)]
    unknown = NodeCondition("Ready", "Unknown", "", world.now - timedelta(seconds=60))
    world.nodes[node.name] = replace(node, conditions=(unknown,))


def test_new_operator_waits_for_the_agents_behind_a_kubelet_that_is_cut_off() -> None:
    world = trained()
    cut_off(world, 1)
    world.restart_operator()
    for _ in range(20):
        world.reconcile()
    assert world.status.restarts == {}
    world.run(SILENT_SECONDS.__ceil__() + 20)
    assert world.status.restarts == {}, "its agent talks"
    assert world.training()


def test_new_operator_finds_a_lost_node_once_its_agent_had_time_to_speak() -> None:
    world = trained()
    cut_off(world, 1)
    world.agent(1).silent = True
    world.restart_operator()
    world.run(int(SILENT_SECONDS) - 2)
    assert world.status.restarts == {}
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.restarts == {"NodeLost": 1}


def test_new_operator_names_no_culprit_before_the_others_had_time_to_speak() -> None:
    world = trained()
    world.crash(0, 134)
    world.reconcile()
    assert world.status.end_seen_at is not None
    world.agent(0).silent = world.agent(1).silent = True
    world.now += timedelta(seconds=70)
    world.restart_operator()
    world.agent(0).say(world.now)
    world.reconcile()
    assert world.status.restarts == {}
    world.agent(1).silent = False
    world.crash(1, 1)
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.last_end is not None
    assert world.status.last_end.worker == 1


def test_conditions_say_unknown_since_when_once_agents_are_silent() -> None:
    world = trained()
    since = world.now
    for agent in world.agents.values():
        agent.silent = True
    world.run(int(SILENT_SECONDS) - 1)
    assert world.training()
    world.run(5)
    running = conditions.get(world.status, Condition.RUNNING)
    assert running is not None
    assert (running.status, running.reason) == ("Unknown", Reason.WORKERS_SILENT)
    assert running.message == f"workers [0, 1] have not reported since {since.strftime('%Y-%m-%dT%H:%M:%SZ')}"
    ready = conditions.get(world.status, Condition.READY)
    assert ready is not None
    assert ready.status == "Unknown"
    assert (world.status.workers.ready, world.status.workers.training) == (0, 0)
    assert world.status.state == "Unknown"
    assert world.status.restarts == {}, "silence alone ends nothing"
    before = world.status.conditions
    world.run(30)
    assert world.status.conditions == before
    for agent in world.agents.values():
        agent.silent = False
    world.run(3)
    assert world.training()
    assert world.status.workers.ready == 2
