"""The lives of jobs, told pass by pass on the pure decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef, Owner, Rejection
from holdfast_contract.reasons import Cause, Condition, Reason, SaveOutcome
from holdfast_contract.sync import Action, Inspection, Progress, TrainerExit, TrainerPhase
from holdfast_operator.decide import conditions
from holdfast_operator.decide.facts import NodeCondition, OtherOwner, Taint
from holdfast_operator.decide.rules import preparation
from tests.support.operator.decide_parts import START, spec
from tests.support.operator.decide_world import World


def trained(**changes: object) -> World:
    """A world in which the job trains in its first attempt."""
    world = World(spec=spec(**changes))
    world.settle(world.training)
    return world


def reason(world: World, kind: Condition) -> str:
    return conditions.get_reason(world.status, kind)


def told(world: World) -> list[Reason]:
    return [e.reason for e in world.events]


def test_first_attempt_begins_above_everything_in_the_run_folder() -> None:
    world = World(inspection=Inspection(7, (CheckpointRef(7, 30, "d"), CheckpointRef(6, 90, "e"))))
    world.settle(world.training)
    assert (world.status.attempt, world.status.active_attempt) == (8, 8)
    assert world.status.checkpoint.pinned is not None
    assert (world.status.checkpoint.pinned.attempt, world.status.checkpoint.pinned.step) == (7, 30)
    assert sorted(world.pods) == ["job-0-0", "job-1-0"]
    assert world.status.restarts == {}
    assert {d.action for d in world.directives.values()} == {Action.RUN}
    assert len({d.coordinator for d in world.directives.values()}) == 1
    assert world.finalizer


def test_crash_restarts_in_place_and_is_counted_once() -> None:
    world = trained()
    world.commit(3)
    world.reconcile()
    world.crash(1, 1)
    world.settle(lambda: world.status.attempt == 2 and world.training())
    assert world.status.restarts == {"Failure": 1}
    assert world.created == ["job-0-0", "job-1-0"]
    assert world.status.last_end is not None
    assert (world.status.last_end.worker, world.status.last_end.exit_code) == (1, 1)
    pinned = world.status.checkpoint.pinned
    assert pinned is not None
    assert pinned.step == 3
    assert {d.attempt for d in world.directives.values()} == {2}


def test_followers_are_not_the_culprit() -> None:
    world = trained()
    world.crash(0, 134)
    assert world.reconcile().requeue_after_seconds == 0  # remembers when it saw the end
    world.reconcile()
    assert world.status.attempt == 1
    world.crash(1, int(ExitCode.STORAGE))
    world.settle(lambda: world.status.attempt == 2)
    assert world.status.restarts == {"StorageError": 1}
    assert world.status.last_end is not None
    assert world.status.last_end.worker == 1


def test_killed_trainer_is_named_after_a_short_settling() -> None:
    world = trained()
    world.crash(1, 137)
    world.reconcile()
    world.reconcile()
    assert world.status.attempt == 1
    world.now += timedelta(seconds=0.6)
    world.reconcile()
    assert world.status.restarts == {"Failure": 1}


def test_notice_saves_moves_and_resumes() -> None:
    world = trained()
    node = world.node_of(1)
    world.taint(node)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    status = world.status
    assert status.restarts == {"Preemption": 1}
    assert status.preemption is not None
    assert status.preemption.outcome is SaveOutcome.COMMITTED
    assert status.preemption.seconds_to_spare is not None
    assert status.preemption.seconds_to_spare > 100
    assert not status.preemption.standing
    assert world.node_of(1) != node
    assert sorted(world.pods) == ["job-0-0", "job-1-2"]
    assert status.goodput.steps_lost == 0
    assert status.failure_times == ()
    order = [Reason.PREEMPTION_NOTICED, Reason.PREEMPTION_SAVED, Reason.WORKER_MOVED]
    assert [r for r in told(world) if r in order] == order
    assert not conditions.holds(status, Condition.PREEMPTED)


def test_training_goes_on_while_the_replacement_starts() -> None:
    world = trained()
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.transition is not None)
    assert world.status.active_attempt == 1
    plan = world.reconcile()
    assert plan.directives is not None
    members = {p.uid for p in world.pods.values() if p.created_in_attempt == 0}
    assert {plan.directives[uid].action for uid in members} == {Action.RUN}


def test_notice_that_vanishes_keeps_the_save_and_calls_the_move_off() -> None:
    world = trained()
    node = world.node_of(1)
    world.taint(node)
    world.settle(lambda: world.status.transition is not None)
    world.untaint(node)
    world.run(6)
    assert world.status.transition is None
    assert world.status.restarts == {}
    assert (world.status.attempt, world.status.active_attempt) == (2, 1)
    assert world.status.checkpoint.newest is not None
    assert sorted(world.pods) == ["job-0-0", "job-1-0"]
    assert world.training()
    world.taint(world.node_of(0))  # a later notice is a new one
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.attempt == 3


def test_notice_without_a_save_in_time_says_so_and_moves() -> None:
    world = trained()
    world.saving = False
    world.taint(world.node_of(1), "ToBeDeletedByClusterAutoscaler")
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.FAILED
    assert world.status.restarts == {"Preemption": 1}


def test_crash_on_the_doomed_node_before_the_save_is_a_preemption() -> None:
    world = trained()
    world.saving = False
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.save is not None)
    world.crash(1, 1)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.FAILED
    assert world.status.failure_times == ()


def test_lost_node_gets_a_replacement_elsewhere_and_costs_no_budget() -> None:
    world = trained(recovery={"maxFailures": 0})
    node = world.node_of(1)
    world.lose_node(node)
    world.crash(0, 134)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"NodeLost": 1}
    assert world.node_of(1) != node
    assert world.status.failure_times == ()


def test_lost_pod_is_replaced() -> None:
    world = trained()
    world.lose_pod(1)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"PodLost": 1}
    assert sorted(world.pods) == ["job-0-0", "job-1-2"]


def test_evicted_pod_is_evicted_whatever_its_code() -> None:
    world = trained()
    world.end_pod("job-1-0", 137)
    world.pods["job-1-0"] = replace(world.pods["job-1-0"], reason="Evicted")
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Evicted": 1}


def test_budget_of_failures_is_a_window() -> None:
    world = trained(recovery={"maxFailures": 1, "windowSeconds": 100, "noProgressLimit": 10})
    world.crash(0, 1)
    world.settle(lambda: world.status.attempt == 2 and world.training())
    world.now += timedelta(seconds=101)
    world.tick()
    world.crash(0, 1)
    world.settle(lambda: world.status.attempt == 3 and world.training())
    world.crash(0, 1)
    world.settle(lambda: conditions.finished(world.status))
    assert reason(world, Condition.FAILED) == Reason.RESTART_BUDGET_EXHAUSTED


def test_failing_without_progress_ends_and_a_checkpoint_resets_the_count() -> None:
    world = trained(recovery={"noProgressLimit": 2})
    for attempt in (1, 2):
        world.commit(attempt)
        world.crash(0, 1)
        world.settle(lambda a=attempt: world.status.attempt == a + 1 and world.training())  # type: ignore[misc]
    assert world.status.no_progress == 0
    world.crash(0, 1)
    world.settle(lambda: world.status.attempt == 4 and world.training())
    world.crash(0, 1)
    world.settle(lambda: conditions.finished(world.status))
    assert reason(world, Condition.FAILED) == Reason.NO_PROGRESS


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ExitCode.NO_VALID_CHECKPOINT, Reason.NO_VALID_CHECKPOINT),
        (ExitCode.FOREIGN_RUN, Reason.FOREIGN_CHECKPOINT_OWNER),
    ],
)
def test_what_no_attempt_can_mend_fails_at_once(code: ExitCode, why: Reason) -> None:
    world = trained()
    world.crash(0, int(code))
    world.settle(lambda: conditions.finished(world.status))
    assert reason(world, Condition.FAILED) == why
    assert world.status.restarts == {}
    world.run(4)
    assert all(p.finished for p in world.pods.values())


def test_whoever_is_told_to_exit_learns_how_the_job_ended() -> None:
    world = trained()
    world.crash(0, int(ExitCode.NO_VALID_CHECKPOINT))
    world.settle(lambda: conditions.finished(world.status))
    world.reconcile()
    assert {d.why for d in world.directives.values()} == {f"the job has failed ({Reason.NO_VALID_CHECKPOINT})"}
    world = trained()
    world.commit(1)
    for index in range(2):
        world.crash(index, 0)
    world.settle(lambda: conditions.finished(world.status))
    world.reconcile()
    assert {d.why for d in world.directives.values()} == {"the job has succeeded"}


def test_failure_message_cuts_no_line_at_its_front() -> None:
    world = trained()
    lines = "\n".join(f"line {i} of a traceback" for i in range(100))
    ended = TrainerExit(world.status.attempt, int(ExitCode.NO_VALID_CHECKPOINT), last_lines=lines)
    world.agent(0).say(world.now, phase=TrainerPhase.EXITED, exit=ended)
    world.crash(1, int(ExitCode.NO_VALID_CHECKPOINT))
    world.settle(lambda: conditions.finished(world.status))
    failed = conditions.get(world.status, Condition.FAILED)
    assert failed is not None
    assert failed.message.startswith("line ")
    assert failed.message.endswith("line 99 of a traceback")
    assert len(failed.message) <= 512


@pytest.mark.parametrize("passes", [1, 2, 4, 6])
def test_a_pod_that_went_as_noticed_while_nobody_looked_was_preempted(passes: int) -> None:
    """The operator notes a notice, is away when the pod goes, and finds nothing of it but its own note."""
    world = trained()
    node = world.node_of(1)
    world.taint(node)
    for _ in range(passes):
        world.reconcile()
    assert world.status.preemption is not None
    assert world.status.preemption.standing
    member = world.pods.pop("job-1-0")
    world.agents.pop(member.uid)
    world.untaint(node)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"Preemption": 1}
    assert Reason.PREEMPTION_CANCELLED not in told(world)
    assert not world.status.preemption.standing


def test_a_pod_that_goes_elsewhere_than_noticed_is_lost() -> None:
    world = trained()
    world.taint(world.node_of(1))
    world.reconcile()
    world.lose_pod(0)
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.restarts == {"PodLost": 1}


def test_a_pod_that_is_kept_off_the_only_place_gets_it_once_its_notice_is_gone() -> None:
    """A fixed set of nodes, cordoned one after another: what was doomed when a pod was made is not doomed for ever."""
    world = trained()
    for node in world.nodes:
        world.taint(node)
    world.settle(lambda: world.status.transition is not None and world.status.transition.training)
    world.run(4)
    for name in ("job-0-0", "job-1-0"):
        world.agents.pop(world.pods.pop(name).uid)
    world.settle(lambda: world.status.transition is not None and not world.status.transition.training)
    world.run(3)
    waiting = [p for p in world.pods.values() if not p.node]
    assert waiting, "there is no place"
    assert all(p.avoids for p in waiting)
    for node in world.nodes:
        world.untaint(node)
    began = world.status.transition.began_at if world.status.transition else world.now
    world.settle(world.training, passes=200)
    assert began is not None
    assert (world.now - began).total_seconds() < preparation.PLACE_SECONDS + 30
    assert len([e for e in told(world) if e is Reason.WORKERS_PENDING]) <= 4, "it is no loop"


def test_a_pod_without_a_place_is_not_made_again_and_again() -> None:
    """Nothing is to be had: neither notices nor anything else that the operator knows of is in the way."""
    world = trained()
    world.nodes = {}
    world.lose_pod(1)
    world.run(100)
    attempt = world.status.attempt
    world.run(300)
    assert world.status.attempt == attempt <= 4


TRACEBACK = """\
    return run()
  File "/work/train.py", line 70, in main
    state = run.restore(init)
            ^^^^^^^^^^^^^^^^^
  File "/lib/restore.py", line 137, in run
    raise NoValidCheckpoint(root)
holdfast.errors.NoValidCheckpoint: /checkpoints/run: 1 checkpoint(s) exist and none may be restored:
  attempt 1, step 10: its manifest is missing
holdfast: this process ends with code 85
"""


def test_failure_message_of_a_traceback_is_the_error() -> None:
    world = trained()
    ended = TrainerExit(world.status.attempt, int(ExitCode.NO_VALID_CHECKPOINT), last_lines=TRACEBACK)
    world.agent(0).say(world.now, phase=TrainerPhase.EXITED, exit=ended)
    world.crash(1, int(ExitCode.NO_VALID_CHECKPOINT))
    world.settle(lambda: conditions.finished(world.status))
    failed = conditions.get(world.status, Condition.FAILED)
    assert failed is not None
    assert failed.message == TRACEBACK.partition("run(root)")[0][TRACEBACK.index("holdfast.errors") :].strip()


def test_completion_needs_every_worker() -> None:
    world = trained()
    world.commit(1)
    world.crash(0, 0)
    world.run(2)
    assert not conditions.finished(world.status)
    world.crash(1, 0)
    world.settle(lambda: conditions.holds(world.status, Condition.SUCCEEDED))
    world.run(3)
    assert {p.phase for p in world.pods.values()} == {"Succeeded"}
    assert not world.finalizer
    before = world.status
    world.run(5)
    assert world.status is before, "a finished job is written no more"


def test_completed_job_shows_its_last_step() -> None:
    world = trained()
    world.commit(99)
    for index in range(2):
        world.agent(index).say(world.now, progress=Progress(99, step_seconds=1.0))
        world.crash(index, 0)
    world.settle(lambda: conditions.holds(world.status, Condition.SUCCEEDED))
    assert world.status.progress is not None
    assert world.status.progress.step == 99


def test_worker_torn_down_by_the_first_to_finish_counts_as_done() -> None:
    world = trained()
    world.commit(1)
    world.crash(0, 0)
    world.crash(1, 134)
    world.settle(lambda: conditions.holds(world.status, Condition.SUCCEEDED))


def test_workers_that_never_finish_after_the_first_are_hung() -> None:
    world = trained()
    world.crash(0, 0)
    world.reconcile()
    world.now += timedelta(seconds=61)
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.restarts == {"Hang": 1}


def test_suspend_saves_releases_and_resumes_as_a_user_request() -> None:
    world = trained()
    world.set_spec(suspend=True)
    world.settle(lambda: conditions.holds(world.status, Condition.SUSPENDED) and not world.pods)
    newest = world.status.checkpoint.newest
    assert newest is not None
    assert world.directives == {}
    world.run(2)
    before = world.status
    world.run(4)
    assert world.status is before, "a suspended job is written no more"
    world.set_spec(suspend=False)
    world.settle(world.training)
    assert world.status.restarts == {"UserRequest": 1}
    assert world.status.attempt == 2
    assert world.status.checkpoint.pinned == newest


def test_suspend_without_a_trainer_saves_nothing_and_says_so() -> None:
    world = World(spec=spec(suspend=True))
    world.run(3)
    assert world.created == []
    condition = conditions.get(world.status, Condition.SUSPENDED)
    assert condition is not None
    assert "nothing was saved" in condition.message


def test_a_job_that_is_resumed_at_once_gets_new_pods_even_before_its_first_attempt() -> None:
    """The condition is stored a moment before the pods are deleted; the user may resume, with another template, between."""
    world = World()
    world.reconcile()
    world.reconcile()
    old = {pod.uid for pod in world.pods.values()}
    assert old
    assert not world.status.active_attempt
    world.set_spec(suspend=True)
    world.reconcile()
    assert conditions.holds(world.status, Condition.SUSPENDED)
    assert {pod.uid for pod in world.pods.values()} == old
    world.set_spec(suspend=False)
    world.settle(world.training)
    assert not old & {pod.uid for pod in world.pods.values()}


def test_deletion_saves_first_and_lets_go() -> None:
    world = trained()
    world.deleted_at = world.now
    world.settle(lambda: world.gone)
    assert world.status.checkpoint.newest is not None
    assert world.pods == {}


def test_deletion_does_not_wait_for_trainers_that_hang() -> None:
    world = trained()
    world.saving = False
    world.deleted_at = world.now
    began = world.now
    world.settle(lambda: world.gone, passes=80)
    assert (world.now - began).total_seconds() <= 30 + 2 + 4


def test_foreign_run_is_refused_until_its_owner_is_gone() -> None:
    world = World(inspection=Inspection(3, owner=Owner("other", "ns", "other-job", 3)))
    world.other_owner = OtherOwner("other", alive=True)
    world.run(5)
    assert reason(world, Condition.ADMITTED) == Reason.FOREIGN_CHECKPOINT_OWNER
    assert world.status.attempt == 0
    assert told(world).count(Reason.FOREIGN_CHECKPOINT_OWNER) == 1
    world.other_owner = OtherOwner("other", alive=False)
    world.settle(lambda: world.status.active_attempt == 4)
    plan = world.reconcile()
    assert plan.directives is not None
    assert {d.take_over for d in plan.directives.values()} == {True}


def test_what_was_found_while_another_job_trained_numbers_no_attempt() -> None:
    owner = Owner("other", "ns", "other-job", 3)
    world = World(inspection=Inspection(3, (CheckpointRef(3, 10, "old"),), owner))
    world.other_owner = OtherOwner("other", alive=True)
    world.run(5)
    # The other job goes on, keeps other checkpoints, and ends between two looks into the folder.
    world.inspection = Inspection(5, (CheckpointRef(5, 40, "new"),), owner)
    world.other_owner = OtherOwner("other", alive=False)
    world.settle(lambda: world.status.active_attempt > 0)
    assert world.status.active_attempt == 6
    assert world.status.checkpoint.pinned is not None
    assert world.status.checkpoint.pinned.step == 40


def test_take_over_can_be_demanded() -> None:
    world = World(
        spec=spec(checkpoint={"path": "/checkpoints", "run": "r", "takeOver": True}),
        inspection=Inspection(3, owner=Owner("other", "ns", "other-job", 3)),
        other_owner=OtherOwner("other", alive=True),
    )
    world.settle(world.training)
    assert world.status.take_over_attempt == 4


def test_unusable_storage_is_a_condition_and_no_attempt() -> None:
    world = World(inspection=Inspection(0, error="/checkpoints: not writable"))
    world.run(5)
    assert reason(world, Condition.ADMITTED) == Reason.STORAGE_UNUSABLE
    world.inspection = Inspection(0)
    world.settle(world.training)


def test_refused_checkpoint_is_shown_and_no_longer_the_newest() -> None:
    world = trained()
    world.commit(5)
    world.reconcile()
    world.crash(0, 1)
    world.settle(lambda: world.status.attempt == 2 and world.training())
    agent = world.agent(0)
    agent.say(world.now, rejected=(Rejection(1, 5, "bit flip"),), restored=CheckpointRef(1, 3, "d"))
    world.reconcile()
    assert [(r.attempt, r.step) for r in world.status.checkpoint.rejected] == [(1, 5)]
    newest = world.status.checkpoint.newest
    assert newest is not None
    assert newest.step == 3
    assert told(world).count(Reason.CHECKPOINT_REJECTED) == 1


def test_recreate_strategy_replaces_every_pod() -> None:
    world = trained(recovery={"strategy": "Recreate"})
    world.crash(0, 1)
    world.settle(lambda: world.status.attempt == 2 and world.training())
    assert sorted(world.pods) == ["job-0-2", "job-1-2"]


def test_older_attempts_report_is_answered_with_the_current_directive() -> None:
    world = trained()
    world.crash(0, 1)
    world.reconcile()
    plan = world.reconcile()
    assert plan.directives is not None
    stale = world.agent(1)
    assert stale.report.attempt == 1
    uid = next(p.uid for p in world.pods.values() if p.index == 1)
    assert (plan.directives[uid].action, plan.directives[uid].attempt) == (Action.RUN, 2)


def test_active_deadline_fails_the_job() -> None:
    world = trained(activeDeadlineSeconds=100)
    world.now += timedelta(seconds=101)
    world.settle(lambda: conditions.finished(world.status))
    assert reason(world, Condition.FAILED) == Reason.DEADLINE_EXCEEDED


def test_finished_job_is_deleted_after_its_time_to_live() -> None:
    world = trained(ttlSecondsAfterFinished=10)
    world.crash(0, 0)
    world.crash(1, 0)
    world.settle(lambda: conditions.finished(world.status))
    world.run(5)
    assert world.deleted_at is None
    world.run(10)
    assert world.deleted_at is not None


def test_second_notice_brings_the_deadline_forward() -> None:
    world = trained()
    world.saving = False
    node = world.node_of(1)
    world.taint(node)
    world.settle(lambda: world.status.save is not None)
    far = world.status.save.deadline if world.status.save else world.now
    name = next(p.name for p in world.pods.values() if p.index == 1)
    world.pods[name] = replace(world.pods[name], deleted_at=world.now + timedelta(seconds=20), grace_seconds=20)
    world.reconcile()
    assert world.status.save is not None
    assert world.status.save.deadline < far - timedelta(seconds=60)
    assert world.status.save.id == "1-2"


def test_silent_worker_is_the_one_that_is_replaced() -> None:
    world = trained()
    world.agent(1).silent = True
    world.tick()
    world.crash(0, 134)
    world.reconcile()
    world.now += timedelta(seconds=61)
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.restarts == {"PodLost": 1}
    assert world.status.transition is None or 1 in world.status.transition.workers


def test_pod_that_fails_before_the_first_attempt_consumes_the_budget() -> None:
    world = World(spec=spec(recovery={"maxFailures": 2, "noProgressLimit": 100}))
    for number in range(3):
        name = f"job-1-{number}"
        world.inspection = Inspection(0, error="not yet")  # nothing begins meanwhile
        world.settle(lambda n=name: n in world.pods and world.pods[n].phase == "Running")  # type: ignore[misc]
        world.end_pod(name, 64)
        world.reconcile()
    assert reason(world, Condition.FAILED) == Reason.RESTART_BUDGET_EXHAUSTED


def test_out_of_memory_is_what_the_agent_says() -> None:
    world = trained()
    world.crash(0, 137, Cause.OUT_OF_MEMORY)
    world.settle(lambda: world.status.restarts_total == 1)
    assert world.status.restarts == {"OutOfMemory": 1}


def test_notice_before_any_step_finds_everything_saved() -> None:
    world = trained()
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt == 2)
    for index in (0, 1):
        agent = world.agent(index)
        agent.say(world.now, attempt=2, phase=TrainerPhase.STARTING, exit=None, progress=None)
    world.taint(world.node_of(1))
    world.reconcile()
    record = world.status.preemption
    assert record is not None
    assert (record.outcome, record.standing) == (SaveOutcome.FRESH, True)
    assert world.status.save is None
    world.settle(lambda: world.status.restarts.get("Preemption") == 1 and world.training())


def test_checkpoint_of_the_last_reported_step_does_not_cover_what_was_trained_since() -> None:
    world = trained()
    reported = world.agent(0).report.progress
    assert reported is not None
    world.commit(reported.last_completed_step)
    world.settle(lambda: world.status.checkpoint.newest is not None)
    world.agent(0).report = replace(world.agent(0).report, progress=reported)  # the report is older than the training
    world.agent(1).report = replace(world.agent(1).report, progress=reported)
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.save is not None)
    asked = world.status.save
    assert asked is not None
    world.reconcile()
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.PENDING, "only the ranks know what they have done since"
    world.settle(lambda: world.status.preemption is not None and world.status.preemption.saved_step is not None)
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED
    assert (world.status.preemption.saved_step or 0) > asked.from_step


def test_switch_right_after_a_checkpoint_still_asks_the_ranks() -> None:
    world = trained()
    world.taint(world.node_of(1))
    world.settle(lambda: world.status.transition is not None)
    world.settle(lambda: world.status.save is not None and world.status.save.purpose == "Switch")
    world.settle(lambda: world.status.restarts_total == 1 and world.training())
    assert world.status.goodput.steps_lost == 0


def test_node_that_only_the_api_server_cannot_reach_is_not_lost() -> None:
    world = trained()
    node = world.node_of(1)
    world.lose_node(node)
    for agent in world.agents.values():
        agent.silent = False
    world.run(60)
    assert world.status.restarts == {}
    assert world.training()


def test_new_operator_that_has_heard_nobody_yet_changes_nothing() -> None:
    world = trained()
    before, agents = world.status, dict(world.agents)
    world.agents.clear()
    world.leads_since = world.now
    for _ in range(3):
        world.reconcile()
    assert world.status is before
    world.agents.update(agents)
    world.run(3)
    assert world.status.restarts == {}


def test_take_over_lasts_until_the_run_is_claimed() -> None:
    world = World(inspection=Inspection(3, owner=Owner("other", "ns", "other-job", 3)))
    world.other_owner = OtherOwner("other", alive=False)
    world.settle(lambda: world.status.active_attempt == 4)
    world.lose_pod(1)  # before any step
    world.settle(lambda: world.status.active_attempt == 5)
    assert world.status.take_over_attempt == 5
    world.settle(world.training)
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt == 6)
    assert world.status.take_over_attempt == 5


def test_storage_trouble_is_told_once_and_training_goes_on() -> None:
    world = trained()
    world.agent(0).say(world.now, storage_error="/checkpoints: no space left on device")
    world.run(4)
    assert told(world).count(Reason.SAVE_FAILED) == 1
    assert reason(world, Condition.CHECKPOINT_VALID) == Reason.SAVE_FAILED
    assert world.training()


def test_account_of_a_finished_job_ends_with_it() -> None:
    world = trained()
    world.run(5)
    world.crash(0, 0)
    world.crash(1, 0)
    world.settle(lambda: conditions.finished(world.status))
    assert world.status.goodput.accounted_until == world.status.completion_time
    assert world.status.completion_time is not None
    seconds = (world.status.completion_time - START).total_seconds()
    assert sum(world.status.goodput.buckets.values()) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("first_look", "begun"), [(0.02, 0.02), (0.99, 0.99), (1.2, 1.0), (1.6, 0.5), (100.0, 0.5), (-3.0, -3.0)]
)
def test_the_account_begins_when_the_job_was_created_as_well_as_can_be_known(first_look: float, begun: float) -> None:
    """The API server says only the second; a clock may be behind its own; an operator may have been away."""
    world = World(now=START + timedelta(seconds=first_look))
    world.settle(world.training)
    world.run(40)
    until = world.status.goodput.accounted_until
    assert until is not None
    seconds = (until - START).total_seconds() - begun
    assert seconds > 1
    assert sum(world.status.goodput.buckets.values()) == pytest.approx(seconds, abs=1e-6)


def test_far_notice_saves_now_and_moves_later() -> None:
    world = trained()
    node = world.node_of(1)
    at = int((world.now + timedelta(seconds=900)).timestamp())
    labels = {"cloud.google.com/scheduled-maintenance-time": str(at)}
    world.nodes[node] = replace(world.nodes[node], labels=labels)
    world.run(20)
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED
    assert world.status.transition is None
    assert world.training()
    world.settle(lambda: world.status.restarts_total == 1, passes=700)
    left = at - world.now.timestamp()
    assert 200 < left <= 300


@pytest.mark.parametrize("kind", ["taint", "label", "annotation", "condition"])
def test_users_own_signs_are_notices(kind: str) -> None:
    matcher = {
        "taint": {"key": "acme/leaving", "effect": "NoSchedule"},
        "label": {"key": "acme/leaving", "value": "yes"},
        "annotation": {"key": "acme/leaving"},
        "condition": {"type": "Leaving", "status": "True"},
    }[kind]
    world = trained(preemption={"notices": [{"name": "acme", kind: matcher, "deadlineSeconds": 40}]})
    node = world.nodes[world.node_of(1)]
    shown = {
        "taint": replace(node, taints=(Taint("acme/leaving", "", "NoSchedule"),)),
        "label": replace(node, labels={"acme/leaving": "yes"}),
        "annotation": replace(node, annotations={"acme/leaving": "soon"}),
        "condition": replace(node, conditions=(*node.conditions, NodeCondition("Leaving", "True"))),
    }[kind]
    world.nodes[node.name] = shown
    world.settle(lambda: world.status.restarts == {"Preemption": 1})
    assert world.status.preemption is not None
    assert world.status.preemption.notice is not None
    assert world.status.preemption.notice.source == "acme"


@pytest.mark.parametrize(
    "labels", [{"cloud.google.com/gke-spot": "true"}, {"kubernetes.azure.com/scalesetpriority": "spot"}]
)
def test_what_a_node_is_is_no_notice(labels: dict[str, str]) -> None:
    world = trained()
    for name, node in world.nodes.items():
        world.nodes[name] = replace(node, labels=labels)
    world.run(5)
    assert world.status.preemption is None


def test_pressure_saves_but_does_not_move() -> None:
    world = trained()
    world.taint(world.node_of(1), "node.kubernetes.io/memory-pressure")
    world.run(10)
    assert world.status.preemption is not None
    assert world.status.preemption.outcome is SaveOutcome.COMMITTED
    assert world.status.restarts == {}
    assert world.status.transition is None


def test_cordon_is_a_notice() -> None:
    world = trained()
    node = world.node_of(1)
    world.nodes[node] = replace(world.nodes[node], unschedulable=True)
    world.settle(lambda: world.status.restarts == {"Preemption": 1})


def test_notice_for_a_node_of_others_is_none_of_ours() -> None:
    world = trained()
    free = next(n for n in world.nodes if n not in {p.node for p in world.pods.values()})
    world.taint(free)
    world.run(5)
    assert world.status.preemption is None


def test_attempts_that_reach_no_step_slow_down_even_where_nothing_is_counted() -> None:
    world = trained()
    began = world.now
    for number in range(1, 9):
        world.settle(lambda n=number: world.status.active_attempt == n, passes=500)  # type: ignore[misc]
        for agent in world.agents.values():  # no step is completed in any attempt
            agent.silent = True
            agent.say(world.now, attempt=number, phase=TrainerPhase.STARTING, exit=None, progress=None)
        world.crash(0, int(ExitCode.NOT_SAVED))
        world.reconcile()
        for agent in world.agents.values():
            agent.silent = False
    assert world.status.restarts == {"Preemption": 8}
    assert (world.now - began).total_seconds() >= 10 + 20 + 40 + 80
    world.settle(world.training, passes=500)
    before = world.now
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt == 10)
    assert (world.now - before).total_seconds() <= 2, "a step forgives everything"


def test_moves_that_were_called_off_slow_nothing_down() -> None:
    world = trained()
    for _ in range(6):
        node = world.node_of(1)
        world.taint(node)
        world.settle(lambda: world.status.transition is not None)
        world.untaint(node)
        world.settle(lambda: world.status.transition is None)
    world.run(2)
    before = world.now
    world.crash(0, 1)
    world.settle(lambda: world.status.active_attempt > 1)
    assert (world.now - before).total_seconds() <= 2


def test_new_operator_in_the_middle_of_a_suspension_waits_for_the_trainers() -> None:
    world = trained()
    world.commit(50)
    world.saving = False
    world.set_spec(suspend=True)
    world.settle(lambda: world.status.save is not None)
    agents = dict(world.agents)
    world.agents.clear()
    world.reconcile()
    assert len(world.pods) == 2, "agents that were not heard yet may still be saving"
    world.agents.update(agents)
    world.saving = True
    world.settle(lambda: conditions.holds(world.status, Condition.SUSPENDED) and not world.pods)
