"""What follows from the stored status: pods to create and to delete, directives, the next pass. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.reasons import Condition
from holdfast_operator.decide import attempts, conditions, ending, job_goodput, notices, replacement, setbacks
from holdfast_operator.decide.actions import Action, CreatePod, DeleteJob, DeletePod, Finalizer, JobPlan, StatusDecision
from holdfast_operator.decide.directives import directives
from holdfast_operator.decide.members import JobView, node_in_doubt
from holdfast_operator.decide.rules import deletion, preparation

RESYNC_SECONDS: Final = 30.0
"""The longest time between two passes over a job that has not finished."""
DOUBT_SECONDS: Final = 1.0
"""How often a job is checked while one of its nodes is not ready."""
SHORTEST_SECONDS: Final = 0.05
"""The shortest time between two passes over a job."""
EXIT_SECONDS: Final = 60.0
"""How long the pods of a finished job may take to end by themselves before they are deleted."""


def plan_effects(view: JobView, reported: StatusDecision, wait_seconds: float | None) -> JobPlan:
    """The plan of a pass without a status decision: it brings about what the status says.

    Args:
        view: the job, with the status that ``apply_reports`` returned.
        reported: that status, with its Events and counts; stored only when it is worth a write.
        wait_seconds: the longest wait, if a rule answered Wait; else None.
    """
    status, write = _status(view, reported.status)
    still = conditions.finished(view.status) or deletion.may_release(view)
    timers = () if still else _timers(view)
    latest = RESYNC_SECONDS if wait_seconds is None else wait_seconds
    return JobPlan(
        status=status,
        actions=tuple(_actions(view)),
        directives=directives(view),
        events=reported.events if write else (),
        counts=reported.counts if write else (),
        requeue_after_seconds=max(SHORTEST_SECONDS, min((latest, *timers))),
    )


def _status(view: JobView, reported: TrainingJobStatus) -> tuple[TrainingJobStatus, bool]:
    """The status, and whether it is worth a write now."""
    stored = view.job.status
    fresh = conditions.derive(view, reported)
    known = stored.progress.observed_at if stored.progress is not None else None
    due = known is None or (view.now - known).total_seconds() >= view.observed.progress_seconds
    stepped = _progress(fresh) != _progress(stored)
    changed = _meaning(fresh) != _meaning(stored) or (due and stepped)
    if not changed and not fresh.workers.training:
        return stored, False  # most passes: nothing has to be accounted
    account = job_goodput.account(view, fresh)
    accounted = stored.goodput.accounted_until or job_goodput.begun(view)
    overdue = ((account.goodput.accounted_until or accounted) - accounted).total_seconds() >= RESYNC_SECONDS
    return (account, True) if changed or overdue else (stored, False)


def _progress(status: TrainingJobStatus) -> object:
    known = status.progress
    return None if known is None else (known.attempt, known.step)


def _meaning(status: TrainingJobStatus) -> object:
    """The status without progress and goodput, which change every second."""
    return status.model_copy(update={"progress": None, "goodput": None})


def _timers(view: JobView) -> Iterator[float]:
    """Seconds until something is due that neither a report nor a watch event announces."""
    status = view.status
    if status.save is not None:
        yield max(0.0, (status.save.deadline - view.now).total_seconds()) + 0.1
        yield 2.0
    yield from _transition_timers(view)
    if status.preemption is not None and status.preemption.standing and status.transition is None and not status.save:
        binding = [n for n in notices.find(view) if n.urgency is not notices.Urgency.ADVISORY]
        if binding:
            yield max(0.0, replacement.replacement_due_seconds(view, binding))
    yield from (left for s in status.setbacks if (left := setbacks.wait_left_seconds(view, s.worker)) > 0)
    if node_in_doubt(view):
        yield DOUBT_SECONDS
    limit = view.spec.active_deadline_seconds
    if limit is not None and not conditions.finished(status) and not conditions.holds(status, Condition.SUSPENDED):
        yield max(0.0, limit - ending.active_seconds(view))
    known = status.progress
    if known is not None and known.observed_at is not None and next(view.training(), None) is not None:
        left = view.observed.progress_seconds - (view.now - known.observed_at).total_seconds()
        if left > 0:  # later, a report of a step or RESYNC_SECONDS wakes the job
            yield max(0.1, left)


def _transition_timers(view: JobView) -> Iterator[float]:
    transition = view.status.transition
    if transition is not None and transition.training:
        if transition.deadline is not None and view.status.save is None:
            yield max(0.0, replacement.switch_left_seconds(view, transition))
    elif transition is not None:
        if (pause := attempts.backoff_left_seconds(view, view.status)) > 0:
            yield pause
        if (patience := preparation.patience_left_seconds(view)) > 0:
            yield patience


def _actions(view: JobView) -> Iterator[Action]:
    if view.job.deleted_at is not None:
        yield from _release(view)
    elif conditions.finished(view.status):
        yield from _clean_up(view)
    elif conditions.holds(view.status, Condition.SUSPENDED):
        yield from (DeletePod(p.name, p.uid) for p in view.observed.pods if not p.terminating)
        if view.job.has_finalizer:
            yield Finalizer.REMOVE
    else:
        if not view.job.has_finalizer and (view.status.active_attempt or view.status.transition is not None):
            yield Finalizer.ADD
        yield from _create(view)
        yield from _delete(view)


def _release(view: JobView) -> Iterator[Action]:
    """Release a deleted job: first its pods, so that they end even where no garbage collector runs."""
    if deletion.may_release(view):
        yield from (DeletePod(p.name, p.uid) for p in view.observed.pods if not p.terminating)
        if view.job.has_finalizer:
            yield Finalizer.REMOVE


def _clean_up(view: JobView) -> Iterator[Action]:
    """Clean up a finished job: agents end by themselves and their pods stay for the logs; other pods are deleted."""
    since = view.status.completion_time
    slow = since is not None and (view.now - since).total_seconds() >= EXIT_SECONDS
    for pod in view.observed.pods:
        if not pod.finished and not pod.terminating and (slow or pod.phase == "Pending"):
            yield DeletePod(pod.name, pod.uid)
    if view.job.has_finalizer:
        yield Finalizer.REMOVE
    left = ending.ttl_left_seconds(view)
    if left is not None and left <= 0:
        yield DeleteJob()


def _create(view: JobView) -> Iterator[CreatePod]:
    """Create missing pods. An attempt that trains gets none: the next attempt replaces what it loses."""
    status, transition = view.status, view.status.transition
    nodes = tuple(sorted(notices.doomed_nodes(view) | set(transition.nodes if transition is not None else ())))
    taken = {(p.index, p.created_in_attempt) for p in view.observed.pods}
    for worker in view.workers:
        if transition is not None and transition.training:
            missing = worker.index in transition.workers and not view.usable(worker.incoming)
        elif transition is not None or not status.active_attempt:
            missing = not view.usable(worker.pod)
        else:
            missing = False
        waits = setbacks.wait_left_seconds(view, worker.index) > 0
        if missing and not waits and (worker.index, status.attempt) not in taken:
            yield CreatePod(worker.index, status.attempt, nodes, setbacks.shunned_nodes(view, worker.index))


def _delete(view: JobView) -> Iterator[DeletePod]:
    """Delete pods that are neither members nor incoming: others have replaced them."""
    kept = {p.uid for w in view.workers for p in (w.pod, w.incoming) if p is not None}
    for pod in view.observed.pods:
        if pod.uid not in kept and not pod.terminating:
            yield DeletePod(pod.name, pod.uid)
