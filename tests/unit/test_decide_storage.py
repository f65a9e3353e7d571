"""When nobody is left who could tell what was committed, storage is asked before the next attempt begins."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import Action, Inspection
from tests.support.operator.decide_world import World


def ref(attempt: int, step: int) -> CheckpointRef:
    return CheckpointRef(attempt, step, f"d{attempt}-{step}")


def trained(*, known_step: int) -> World:
    """Two workers train, and the operator knows of one checkpoint."""
    world = World()
    world.settle(world.training)
    world.commit(known_step)
    world.settle(lambda: world.status.checkpoint.newest is not None)
    return world


def orphans(world: World) -> None:
    """All agents end while the operator is away; the next one finds their pods and knows nothing that they said."""
    for name in list(world.pods):
        world.end_pod(name, int(ExitCode.ORPHANED))
    world.agents = {}


@given(
    known=st.integers(1, 50),
    found=st.sets(st.tuples(st.integers(1, 2), st.integers(1, 99)), max_size=5),
)
def test_the_next_attempt_is_pinned_to_the_newest_of_what_is_known_and_found(
    known: int, found: set[tuple[int, int]]
) -> None:
    """Also if what is known was cleared away; and never to anything that no attempt so far can have written."""
    world = trained(known_step=known)
    world.inspection = Inspection(2, tuple(ref(*place) for place in sorted(found, reverse=True)))
    orphans(world)
    world.settle(lambda: world.status.active_attempt == 2)
    pinned = world.status.checkpoint.pinned
    assert pinned is not None
    expected = max([(1, known), *(place for place in found if place[0] == 1)])
    assert (pinned.attempt, pinned.step) == expected
    assert world.status.restarts == {"Orphaned": 1}


def test_nothing_begins_before_storage_has_answered_and_only_worker_0_is_asked() -> None:
    world = trained(known_step=10)
    orphans(world)
    world.settle(lambda: world.status.attempt == 2)
    for _ in range(5):
        world.reconcile()
        world.tick()
        for agent in world.agents.values():  # they speak, but worker 0's storage does not answer
            agent.report = replace(agent.report, inspection=None)
    assert world.status.active_attempt == 1
    asked = {p.index: world.directives[p.uid].action for p in world.pods.values() if p.uid in world.directives}
    assert asked == {0: Action.INSPECT, 1: Action.WAIT}
    world.settle(lambda: world.status.active_attempt == 2)


def test_storage_that_cannot_be_read_does_not_hold_up_what_is_known() -> None:
    """The trainers will say what is wrong with it, and that is counted."""
    world = trained(known_step=10)
    world.inspection = Inspection(0, error="/checkpoints: Input/output error")
    orphans(world)
    world.settle(lambda: world.status.active_attempt == 2)
    assert world.status.checkpoint.pinned == world.status.checkpoint.newest
    assert world.status.checkpoint.newest is not None
    assert world.status.checkpoint.newest.step == 10


def test_who_survives_is_believed_without_a_look_into_storage() -> None:
    world = trained(known_step=10)
    world.crash(1, 1)
    actions: set[Action] = set()
    for _ in range(10):
        world.reconcile()
        actions |= {d.action for d in world.directives.values()}
        world.tick()
    assert world.status.active_attempt == 2
    assert Action.INSPECT not in actions


def test_a_refused_checkpoint_that_is_found_again_is_not_pinned() -> None:
    world = trained(known_step=10)
    world.inspection = Inspection(1, (ref(1, 30), ref(1, 20)))
    orphans(world)
    refused = {"attempt": 1, "step": 30, "reason": "a flipped bit"}
    checkpoint = type(world.status.checkpoint).model_validate({"rejected": [refused]})
    world.status = world.status.model_copy(
        update={"checkpoint": world.status.checkpoint.model_copy(update={"rejected": checkpoint.rejected})}
    )
    world.settle(lambda: world.status.active_attempt == 2)
    assert world.status.checkpoint.pinned is not None
    assert world.status.checkpoint.pinned.step == 20
