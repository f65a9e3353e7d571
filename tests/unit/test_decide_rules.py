"""Rules that hold for every history: causes are total, numbers only grow, restarts count once, seconds add up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_contract.reasons import Bucket, Cause, Condition, SaveOutcome
from holdfast_contract.sync import Action, Inspection
from holdfast_operator.decide import conditions, job_goodput
from holdfast_operator.decide.causes import Evidence, classify
from holdfast_operator.decide.members import JobView
from tests.support.operator.decide_parts import START, spec
from tests.support.operator.decide_world import World

# ---- causes

texts = st.one_of(
    st.sampled_from(["", "Evicted", "OOMKilled", "NodeShutdown", "EvictionByEvictionAPI"]), st.text(max_size=8)
)
evidence = st.builds(
    Evidence,
    node_lost=st.booleans(),
    disruption=texts,
    pod_reason=texts,
    terminating=st.booleans(),
    absent=st.booleans(),
    agent_cause=st.one_of(st.none(), st.sampled_from(Cause)),
    container_reason=texts,
    exit_code=st.one_of(st.none(), st.integers(-1, 300)),
    pod_phase=st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
)


@given(evidence)
def test_every_end_has_exactly_one_cause(found: Evidence) -> None:
    assert isinstance(classify(found), Cause)


@given(evidence)
def test_a_lost_node_is_never_the_jobs_fault(found: Evidence) -> None:
    assert not classify(replace(found, node_lost=True)).budgeted


@pytest.mark.parametrize("code", range(256))
def test_every_exit_code_alone_is_classified_and_only_stops_are_free(code: int) -> None:
    free = {80, 81, 82, 83}
    assert classify(Evidence(exit_code=code)).budgeted == (code not in free)


# ---- histories: any faults, in any order, with the operator dying after any effect


def crash(world: World, index: int) -> None:
    world.crash(index, 1)


def kill(world: World, index: int) -> None:
    world.crash(index, 137)


def abort(world: World, index: int) -> None:
    world.crash(index, 134)


def lose_pod(world: World, index: int) -> None:
    world.lose_pod(index)


def notice(world: World, index: int) -> None:
    world.taint(world.node_of(index))


def withdraw(world: World, _: int) -> None:
    for node in world.nodes:
        world.untaint(node)
        world.uncordon(node)


def suspend(world: World, _: int) -> None:
    world.set_spec(suspend=True)


def resume(world: World, _: int) -> None:
    world.set_spec(suspend=False)


def mute(world: World, _: int) -> None:
    world.saving = not world.saving


def commit(world: World, _: int) -> None:
    progress = world.agent(0).report.progress
    if progress is not None:
        world.commit(progress.last_completed_step)


def cordon(world: World, index: int) -> None:
    world.cordon(world.node_of(index))


def reject(world: World, index: int) -> None:
    world.rejects["abc"[index]] = "UnexpectedAdmissionError"


def admit(world: World, _: int) -> None:
    world.rejects.clear()


def delete(world: World, index: int) -> None:
    world.delete_pod(index, grace_seconds=5)


def end_deleted(world: World, index: int) -> None:
    pod = world.member(index)
    if pod.terminating:
        world.end_pod(pod.name, 80)


def restart_operator(world: World, _: int) -> None:
    world.restart_operator()


FAULTS = (
    *(crash, kill, abort, lose_pod, notice, withdraw, suspend, resume, mute, commit),
    *(cordon, reject, admit, delete, end_deleted, restart_operator),
)
history = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.integers(0, 1), st.integers(0, 5), st.integers(1, 30)), max_size=12
)


def exact_sum(world: World) -> None:
    account = world.status.goodput
    if account.accounted_until is None:
        return
    until = round((account.accounted_until - START) / timedelta(milliseconds=1))
    assert sum(job_goodput.milliseconds(world.status).values()) == until
    assert set(account.buckets) <= {b.value for b in Bucket}
    assert all(v >= 0 for v in account.buckets.values())


def only_members_run(world: World) -> None:
    """No trainer is told to run in a pod that is not its index's member, nor two pods of one index."""
    members = {w.pod.uid for w in JobView.of(world.observe(), world.now).workers if w.pod is not None}
    plan = world.plans[-1]
    running = {uid for uid, d in (plan.directives or {}).items() if d.action is Action.RUN}
    assert running <= members
    assert all(d.attempt == world.status.active_attempt for uid, d in (plan.directives or {}).items() if uid in running)


def counted_once(world: World) -> None:
    """A restart is counted exactly when an attempt ends: never more restarts than attempts that have begun."""
    status = world.status
    assert status.restarts_total == sum(status.restarts.values())
    assert status.restarts_total <= max(0, status.attempt - 1)
    budgeted = sum(n for cause, n in status.restarts.items() if Cause(cause).budgeted)
    failed = int(conditions.holds(status, Condition.FAILED))
    assert budgeted <= len(status.failure_times) <= budgeted + failed + 1


@settings(max_examples=120, deadline=None)
@given(history)
def test_whatever_happens_the_numbers_hold(steps: list[tuple[Callable[[World, int], None], int, int, int]]) -> None:
    world = World(spec=spec(recovery={"noProgressLimit": 1000, "maxFailures": 100}))
    world.settle(world.training)
    for fault, index, effects, seconds in steps:
        with contextlib.suppress(ValueError, KeyError, AssertionError):  # nobody there to be struck
            fault(world, index)
        world.reconcile(effects)  # the operator dies in this pass
        for _ in range(4):
            world.reconcile()
            only_members_run(world)
            exact_sum(world)
            counted_once(world)
        world.tick(seconds)
    withdraw(world, 0)
    resume(world, 0)
    admit(world, 0)
    for pod in [p for p in world.pods.values() if p.terminating and not p.finished]:
        world.end_pod(pod.name, 80)
    world.saving = True
    world.settle(world.training, passes=900)
    assert set(world.status.restarts) <= {c.value for c in Cause}
    exact_sum(world)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=8))
def test_preemptions_never_consume_the_budget(moves: list[tuple[int, int]]) -> None:
    world = World(spec=spec(recovery={"maxFailures": 0, "noProgressLimit": 1}))
    world.settle(world.training)
    for number, (index, seconds) in enumerate(moves, start=1):
        world.taint(world.node_of(index))
        world.settle(lambda n=number: world.status.restarts_total == n and world.training())  # type: ignore[misc]
        withdraw(world, 0)
        world.tick(seconds)
    assert world.status.restarts == {"Preemption": len(moves)}
    assert world.status.failure_times == ()
    assert world.status.goodput.steps_lost == 0


# ---- the operator killed before and after every effect of one story


def story_crash(world: World) -> Callable[[], bool]:
    world.commit(2)
    world.crash(1, 1)
    return lambda: world.status.restarts == {"Failure": 1} and world.training()


def story_notice(world: World) -> Callable[[], bool]:
    world.taint(world.node_of(1))
    return lambda: world.status.restarts == {"Preemption": 1} and world.training()


def story_lost_pod(world: World) -> Callable[[], bool]:
    world.lose_pod(0)
    return lambda: world.status.restarts == {"PodLost": 1} and world.training()


def story_suspend(world: World) -> Callable[[], bool]:
    world.set_spec(suspend=True)
    return lambda: conditions.holds(world.status, Condition.SUSPENDED) and not world.pods


def story_delete(world: World) -> Callable[[], bool]:
    world.deleted_at = world.now
    return lambda: world.gone and not world.pods


STORIES = (story_crash, story_notice, story_lost_pod, story_suspend, story_delete)


def tell(story: Callable[[World], Callable[[], bool]], *, die_in_pass: int, after: int) -> tuple[World, int]:
    """The story with the operator dying in one pass after so many effects; the world and the passes that it took."""
    world = World()
    world.settle(world.training)
    before = len(world.plans)
    done = story(world)
    for number in range(80):
        if done():
            return world, len(world.plans) - before
        plan = world.reconcile(after if number == die_in_pass else None)
        if plan.requeue_after_seconds > 0:
            world.tick()
    raise AssertionError(f"{story.__name__}: killed in pass {die_in_pass} after {after} effects, never ended")


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_killed_at_any_effect_the_next_pass_goes_on(story: Callable[[World], Callable[[], bool]]) -> None:
    reference, passes = tell(story, die_in_pass=-1, after=0)
    for die_in_pass in range(passes):
        for after in range(7):
            world, _ = tell(story, die_in_pass=die_in_pass, after=after)
            assert world.status.attempt == reference.status.attempt
            assert world.status.restarts == reference.status.restarts
            assert sorted(world.pods) == sorted(reference.pods)
            assert len(set(world.created)) == len(world.created), "no pod was made twice"
            exact_sum(world)


def test_killed_at_any_effect_before_the_first_attempt_numbers_once() -> None:
    for die_in_pass in range(6):
        for after in range(7):
            world = World(inspection=Inspection(4))
            for number in range(20):
                if world.training():
                    break
                if world.reconcile(after if number == die_in_pass else None).requeue_after_seconds > 0:
                    world.tick()
            assert world.status.active_attempt == 5
            assert len(world.pods) == 2


def test_quiet_when_nothing_happens() -> None:
    """A job that waits for capacity is written once and then left alone."""
    world = World()
    world.reconcile()
    world.reconcile()
    before = world.status
    for _ in range(30):
        world.now += timedelta(seconds=2)
        world.reconcile()
    assert world.status is before


def test_outcomes_are_told_for_every_notice() -> None:
    world = World()
    world.settle(world.training)
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.restarts_total == 1)
    told = [c.labels["outcome"] for c in world.counts if "outcome" in c.labels]
    assert told == [SaveOutcome.COMMITTED.value]
