"""Notices of every age and order: what binds, which save answers, and when a worker moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Condition, Reason, SaveOutcome
from holdfast_operator.decide import conditions
from holdfast_operator.decide.facts import NodeCondition, Taint
from tests.support.operator.decide_parts import spec
from tests.support.operator.decide_world import World

DEFAULT_SECONDS = 25
PRESSURE = "node.kubernetes.io/memory-pressure"


def trained(**changes: object) -> World:
    """A world in which the job has trained for some steps in its first attempt."""
    world = World(spec=spec(**changes))
    world.settle(world.training)
    world.run(5)
    return world


def told(world: World) -> list[Reason]:
    return [e.reason for e in world.events]


def fill(world: World, *full: str) -> None:
    """No further pod finds a place on these nodes."""
    for name in full:
        world.nodes[name] = replace(world.nodes[name], taints=(Taint("full", "", "NoSchedule"),))


def show_old_condition(world: World) -> None:
    node = world.nodes[world.node_of(1)]
    since = world.now - timedelta(hours=2)
    leaving = NodeCondition("MaintenanceInProgress", "True", "", since)
    world.nodes[node.name] = replace(node, conditions=(*node.conditions, leaving))


def show_old_taint(world: World) -> None:
    world.taint(world.node_of(1), age_seconds=7200)


def show_old_taint_of_a_new_matcher(world: World) -> None:
    node = world.nodes[world.node_of(1)]
    old = Taint("acme/leaving", "", "NoSchedule", world.now - timedelta(hours=2))
    world.nodes[node.name] = replace(node, taints=(old,))
    world.run(2)
    matcher = {"name": "acme", "taint": {"key": "acme/leaving"}, "deadlineSeconds": 40}
    world.spec = spec(preemption={"notices": [matcher]})


@pytest.mark.parametrize("show", [show_old_condition, show_old_taint, show_old_taint_of_a_new_matcher])
def test_deadline_that_had_passed_when_first_seen_is_the_default_from_then(show: object) -> None:
    world = trained()
    assert callable(show)
    show(world)
    seen = world.now
    world.reconcile()
    record = world.status.preemption
    assert record is not None
    assert record.notice is not None
    assert record.notice.deadline == seen + timedelta(seconds=DEFAULT_SECONDS)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.goodput.steps_lost == 0
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED


def test_instant_in_the_past_is_the_default_and_does_not_slide() -> None:
    world = trained()
    fill(world, "a", "b", "c")
    node = world.nodes[world.node_of(1)]
    past = str(int((world.now - timedelta(hours=1)).timestamp()))
    world.nodes[node.name] = replace(node, labels={"cloud.google.com/scheduled-maintenance-time": past})
    seen = world.now
    for _ in range(20):
        world.run(1)
        assert world.status.notices[0].deadline == seen + timedelta(seconds=DEFAULT_SECONDS)
        assert world.status.notices[0].noticed_at == seen
    assert world.status.notices[0].outcome is SaveOutcome.COMMITTED


def test_pressure_first_does_not_bind_a_later_notice_elsewhere() -> None:
    world = trained()
    world.taint(world.node_of(0), PRESSURE)
    world.run(100)
    assert world.status.restarts == {}
    first = world.status.saves_requested
    world.taint(world.node_of(1))
    fill(world, *(n for n in world.nodes if n not in {world.node_of(0), world.node_of(1)}))
    seen = world.now
    world.reconcile()
    assert world.status.saves_requested == first + 1, "the new notice gets a save of its own"
    assert world.status.save is not None
    record = world.status.preemption
    assert record is not None
    assert record.notice is not None
    assert record.notice.deadline == seen + timedelta(seconds=120)
    world.settle(lambda: world.status.transition is not None)
    assert world.status.transition is not None
    assert world.status.transition.deadline == seen + timedelta(seconds=120)
    world.run(60)
    assert world.status.active_attempt == 1, "training goes on until the deadline of the notice that binds"
    world.settle(lambda: world.status.restarts_total == 1, passes=90)
    assert world.status.goodput.steps_lost == 0


def test_nearer_notice_after_a_saved_one_gets_a_save_of_its_own_at_once() -> None:
    world = trained()
    node = world.node_of(1)
    world.cordon(node)
    fill(world, *(n for n in world.nodes if n != node))
    world.settle(lambda: any(n.outcome is SaveOutcome.COMMITTED for n in world.status.notices))
    old = world.status.preemption
    world.run(20)
    world.saving = False
    world.taint(node, "ToBeDeletedByClusterAutoscaler")
    seen = world.now
    world.reconcile()
    assert world.status.save is not None
    assert world.status.save.requested_at == seen
    assert world.status.save.deadline == seen + timedelta(seconds=DEFAULT_SECONDS)
    record = world.status.preemption
    assert old is not None
    assert record is not None
    assert (old.outcome, record.outcome) == (SaveOutcome.COMMITTED, SaveOutcome.PENDING)
    world.reconcile()
    world.saving = True
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.goodput.steps_lost == 0


def test_withdrawal_of_one_of_two_notices_leaves_the_other_binding() -> None:
    world = trained()
    near, far = world.node_of(1), world.node_of(0)
    fill(world, *(n for n in world.nodes if n not in {near, far}))
    world.taint(far)
    world.settle(lambda: world.status.transition is not None)
    world.taint(near, "ToBeDeletedByClusterAutoscaler")
    world.run(3)
    assert [n.node for n in world.status.notices] == [near, far]
    world.untaint(near)
    world.cordon(near)  # no place there, and the cordon is a notice without a deadline
    world.run(3)
    assert [(n.node, n.source) for n in world.status.notices] == [
        (far, "taint karpenter.sh/disrupted"),
        (near, "cordon"),
    ]
    assert world.status.transition is not None
    assert world.status.transition.deadline == world.status.notices[0].deadline


def test_node_that_is_removed_in_the_middle_of_a_replacement_was_preempted() -> None:
    world = trained()
    node = world.node_of(1)
    world.taint(node)
    world.settle(lambda: any(p.name == "job-1-2" and p.uid in world.agents for p in world.pods.values()))
    created = list(world.created)
    world.remove_node(node)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert world.created == created, "the ready replacement is kept"
    assert Reason.PREEMPTION_CANCELLED not in told(world)


@pytest.mark.parametrize("code", [int(ExitCode.SAVED), int(ExitCode.NOT_SAVED), 137])
def test_pod_that_ends_after_its_deletion_withdraws_nothing(code: int) -> None:
    world = trained()
    world.delete_pod(1)
    world.settle(lambda: world.status.transition is not None)
    world.end_pod(world.member(1).name, code)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert Reason.PREEMPTION_CANCELLED not in told(world)


def test_cordon_without_spare_capacity_does_not_stop_training() -> None:
    world = trained()
    node = world.node_of(1)
    fill(world, *(n for n in world.nodes if n != node))
    world.cordon(node)
    world.run(1500)
    assert world.training()
    assert (world.status.active_attempt, world.status.restarts) == (1, {})
    shown = conditions.get(world.status, Condition.PREEMPTED)
    assert shown is not None
    assert "no deadline" in shown.message
    assert "training continues until the new pods are ready" in shown.message
    assert "new pod of worker 1: Pending" in shown.message
    assert world.status.saves_requested == 1
    for name in world.nodes:
        if name != node:
            world.untaint(name)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert world.status.goodput.steps_lost == 0


def test_crash_under_a_cordon_without_spare_capacity_restarts_in_place() -> None:
    world = trained()
    node = world.node_of(1)
    fill(world, *(n for n in world.nodes if n != node))
    world.cordon(node)
    world.settle(lambda: "job-1-2" in world.pods)
    world.run(3)
    world.crash(0, 1)
    began = world.now
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert (world.now - began).total_seconds() <= 5
    assert world.status.restarts == {"Failure": 1}
    assert {world.member(0).name, world.member(1).name} == {"job-0-0", "job-1-0"}
    world.run(5)
    world.crash(1, 1)
    world.settle(lambda: world.status.restarts_total == 2 and world.training())
    assert world.status.restarts == {"Failure": 2}, "a trainer's own end on a cordoned node is the trainer's"


def test_crash_right_after_a_withdrawal_keeps_the_healthy_pod() -> None:
    """The replacement that was called off still terminates: it must not become the worker."""
    world = trained()
    node = world.node_of(1)
    world.taint(node)
    world.settle(lambda: "job-1-2" in world.pods)
    world.untaint(node)
    world.settle(lambda: world.status.transition is None)
    world.crash(0, 1)
    world.reconcile()
    world.reconcile()
    assert world.member(1).name == "job-1-0"
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert sorted(world.pods) == ["job-0-0", "job-1-0"]


def test_notice_is_remembered_across_attempts_and_saved_for_in_each() -> None:
    world = trained()
    node = world.node_of(1)
    fill(world, *(n for n in world.nodes if n != node))
    world.cordon(node)
    world.settle(lambda: any(n.outcome is SaveOutcome.COMMITTED for n in world.status.notices))
    noticed_at = world.status.notices[0].noticed_at
    world.run(50)
    world.crash(0, 1)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    world.settle(lambda: bool(world.status.notices) and world.status.notices[0].outcome is SaveOutcome.COMMITTED)
    assert world.status.notices[0].noticed_at == noticed_at
    assert world.status.saves_requested == 2


def test_save_that_failed_with_time_left_is_requested_again() -> None:
    world = trained()
    world.failing_saves = 1
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED
    assert world.status.goodput.steps_lost == 0
    assert Reason.PREEMPTION_SAVE_FAILED in told(world)


def test_saves_that_fail_again_and_again_do_not_hold_up_the_replacement() -> None:
    world = trained()
    world.failing_saves = 100
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.transition is not None)
    assert world.status.saves_requested == 3
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.FAILED


def test_save_that_failed_right_before_the_deadline_is_not_requested_again() -> None:
    world = trained()
    world.saving = False
    world.delete_pod(1, grace_seconds=8)
    world.settle(lambda: world.status.save is not None)
    world.run(5)
    world.saving, world.failing_saves = True, 1
    world.settle(lambda: world.status.preemption is not None and world.status.preemption.outcome is SaveOutcome.FAILED)
    world.reconcile()
    assert world.status.notices[0].tries == 1
