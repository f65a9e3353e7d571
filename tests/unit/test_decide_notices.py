"""Notices that property tests meet only now and then: a second one during a move, and a save that nobody answers."""

from __future__ import annotations

from holdfast_contract.reasons import Cause, Reason, SaveOutcome
from tests.support.operator.decide_world import World


def trained() -> World:
    """A world in which the job trains in its first attempt."""
    world = World()
    world.settle(world.training)
    return world


def test_a_second_notice_during_a_move_widens_it_to_one_switch_for_both() -> None:
    world = trained()
    nodes = {world.node_of(0), world.node_of(1)}
    doomed = world.node_of(1)
    world.taint(doomed)
    world.settle(lambda: world.status.transition is not None)
    assert world.status.transition is not None
    assert world.status.transition.workers == (1,)
    (other,) = nodes - {doomed}
    world.taint(other)
    world.settle(lambda: world.status.transition is not None and len(world.status.transition.workers) == 2)
    assert world.status.transition.workers == (0, 1)
    assert set(world.status.transition.nodes) == nodes
    assert world.events[-1].reason is Reason.PREEMPTION_NOTICED
    world.settle(lambda: world.status.restarts_total > 0 and world.training())
    assert world.status.restarts == {Cause.PREEMPTION.value: 1}
    assert {world.node_of(0), world.node_of(1)}.isdisjoint(nodes)


def test_a_checkpoint_that_holds_every_step_answers_a_save_that_nobody_answered() -> None:
    world = trained()
    world.saving = False
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.save is not None)
    world.commit(1_000)
    world.settle(
        lambda: world.status.preemption is not None and world.status.preemption.outcome is not None, passes=900
    )
    world.settle(lambda: world.status.preemption.outcome is not SaveOutcome.PENDING, passes=900)
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED
    assert world.status.preemption.saved_step == 1_000


def test_a_checkpoint_that_lacks_a_step_does_not_answer_for_it() -> None:
    world = trained()
    world.saving = False
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.save is not None)
    world.commit(1)
    world.settle(lambda: world.status.preemption.outcome is not SaveOutcome.PENDING, passes=900)
    assert world.status.preemption.outcome is SaveOutcome.FAILED
    assert "no worker reported a committed save by the deadline" in world.status.preemption.reason
