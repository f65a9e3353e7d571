"""Attempts: how one ends, how the next is prepared, and how it begins.

active ──finish──► ended ──restart──► next attempt prepared ──begin_if_ready──► active
                                          │      ▲
                                          └──────┘ renumber: a pod became unusable meanwhile

Every function returns a status. The attempt's number is stored before any pod or process of that attempt exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast_contract.api import AttemptEnd, CheckpointPoint, Strategy, TrainingJobStatus, Transition
from holdfast_contract.api_status import MAX_CALLED_OFF, MAX_LAST_LINES, MAX_MESSAGE
from holdfast_contract.reasons import Cause, Metric, Reason
from holdfast_operator.decide import (
    backoff,
    failure_history,
    job_goodput,
    notice_memory,
    run_inspection,
    setbacks,
    step_progress,
)
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notices import Urgency


def finish(view: JobView, cause: Cause, *, message: str, end: End | None = None) -> TrainingJobStatus:
    """The status after the active attempt: its end is recorded, and its lost steps are accounted.

    Args:
        view: the job.
        cause: why the attempt ended.
        message: the same in words.
        end: the end of the first worker, if one ended.
    """
    record = end_record(view.status.active_attempt, cause, message, end)
    lost = lost_steps(view)
    status = job_goodput.charge_rework(view, lost)
    counted = failure_history.after_end(status, cause, lost_steps=lost)
    if cause is not Cause.USER_REQUEST:
        stepless = 0 if step_progress.has_stepped(view) else counted.stepless + 1
        counted = counted.model_copy(update={"stepless": stepless})
    status = notice_memory.forget_saves(status)
    return status.model_copy(update={"last_end": record, "end_seen_at": None, "save": None, "failures": counted})


def end_record(attempt: int, cause: Cause, message: str, end: End | None) -> AttemptEnd:
    """How an attempt ended, for the status.

    Args:
        attempt: its number.
        cause: why it ended.
        message: the same in words.
        end: the end of the first worker, if one ended.
    """
    return AttemptEnd(
        attempt=attempt,
        cause=cause,
        message=message[:MAX_MESSAGE],
        worker=end.worker.index if end is not None else None,
        exit_code=end.code if end is not None else None,
        last_lines=end.last_lines[-MAX_LAST_LINES:] if end is not None else "",
    )


def lost_steps(view: JobView) -> int:
    """Steps of the active attempt that are not in any committed checkpoint."""
    newest = view.status.checkpoint.newest
    return max(0, step_progress.reached(view) - (newest.step if newest is not None else 0))


def restart(
    view: JobView, status: TrainingJobStatus, cause: Cause, *, workers: Iterable[int], nodes: Iterable[str], why: str
) -> StatusDecision:
    """Prepare the next attempt. Its cause is counted here and nowhere else.

    If a replacement is being prepared, its attempt becomes the next one. But a worker whose healthy pod is only to be
    moved some time (a planned notice) stays in it while its new pod is not ready: there may be no place for that one.

    Args:
        view: the job before the end.
        status: the status after the end, by ``finish``.
        cause: why the attempt ended.
        workers: these get new pods; the others restart their trainers in place.
        nodes: the new pods avoid these nodes.
        why: the cause in words, for the Event.
    """
    staying = _staying(view)
    status = call_off(view, status, staying)
    following = _following(view, status, cause, set(workers) - staying, nodes)
    following = following.model_copy(update={"workers": tuple(i for i in following.workers if i not in staying)})
    number = following.attempt
    restarts = dict(status.restarts)
    restarts[cause.value] = restarts.get(cause.value, 0) + 1
    status = status.model_copy(
        update={
            "attempt": number,
            "transition": following,
            "restarts": restarts,
            "restarts_total": sum(restarts.values()),
        }
    )
    lost = status.goodput.steps_lost - view.status.goodput.steps_lost
    counts = (Count(Metric.RESTARTS, labels={"cause": cause.value}), Count(Metric.STEPS_LOST, float(lost)))
    event = Event(Reason.RECOVERING, f"attempt {number} is next (cause {cause.value}): {why}")
    begun = begin_if_ready(view, status)
    if begun is None:
        return StatusDecision(status, (event,), counts)
    return StatusDecision(begun.status, (event, *begun.events), counts)


def _staying(view: JobView) -> frozenset[int]:
    """Workers that stay in their healthy pods although a planned notice stands: their new pods are not ready."""
    if view.spec.recovery.strategy is Strategy.RECREATE:
        return frozenset()
    planned = frozenset({Urgency.PLANNED})
    healthy = (w for w in view.workers if view.usable(w.pod) and not view.ready(w.incoming))
    return frozenset(w.index for w in healthy if notice_memory.urgencies(view, w.index) - {Urgency.ADVISORY} == planned)


def call_off(view: JobView, status: TrainingJobStatus, workers: Iterable[int]) -> TrainingJobStatus:
    """The status in which the incoming pods of these workers never become members.

    Args:
        view: the job.
        status: the status to change.
        workers: their incoming pods are not needed any more.
    """
    indices = frozenset(workers)
    existing = {pod.uid for pod in view.observed.pods}
    fresh = tuple(w.incoming.uid for w in view.workers if w.index in indices and w.incoming is not None)
    known = tuple(uid for uid in status.called_off if uid in existing and uid not in fresh)
    return status.model_copy(update={"called_off": (*fresh, *known)[:MAX_CALLED_OFF]})


def _following(
    view: JobView, status: TrainingJobStatus, cause: Cause, workers: Iterable[int], nodes: Iterable[str]
) -> Transition:
    """The preparation of the next attempt, which takes over a replacement that is under way."""
    transition = status.transition
    number = transition.attempt if transition is not None and transition.training else status.attempt + 1
    indices = set(workers) | set(transition.workers if transition is not None else ())
    # A pod that was made under an earlier number of the same preparation is its worker's newest one already.
    indices -= {w.index for w in view.workers if w.incoming is not None and w.incoming.created_in_attempt < number}
    if view.spec.recovery.strategy is Strategy.RECREATE:
        indices = set(range(view.spec.replicas))
    return Transition(
        attempt=number,
        cause=cause,
        workers=tuple(sorted(indices)),
        nodes=tuple(sorted({*nodes, *(transition.nodes if transition is not None else ())})),
        began_at=view.now,
    )


def backoff_left_seconds(view: JobView, status: TrainingJobStatus) -> float:
    """Seconds until the prepared attempt may begin. After an attempt that completed a step, the next begins at once."""
    begins_at = backoff.attempt_begins_at(view.job.uid, status)
    return 0.0 if begins_at is None else (begins_at - view.now).total_seconds()


def begin_if_ready(view: JobView, status: TrainingJobStatus) -> StatusDecision | None:
    """Begin the prepared attempt if every worker can start a trainer now; else None.

    It restores the newest checkpoint, which becomes its pin.
    """
    transition = status.transition
    if transition is None or transition.training or not view.under(status).gang_ready:
        return None
    if backoff_left_seconds(view, status) > 0:
        return None
    newest = status.checkpoint.newest
    if run_inspection.inspection_is_needed(view.under(status)):
        found = run_inspection.inspection_of(view.under(status))
        if found is None:
            return None
        newest = run_inspection.newest_checkpoint(view, status, found)
    claimed = view.status.progress is not None and view.status.progress.attempt >= (status.take_over_attempt or 0)
    takes_over = status.take_over_attempt is not None and not claimed
    begun = status.model_copy(
        update={
            "notices": notice_memory.still_standing(view.under(status)),
            "active_attempt": transition.attempt,
            "take_over_attempt": transition.attempt if takes_over else status.take_over_attempt,
            "transition": None,
            "setbacks": (),
            "end_seen_at": None,
            "failures": failure_history.at_attempt_start(status),
            "checkpoint": status.checkpoint.model_copy(update={"newest": newest, "pinned": newest, "restored": None}),
        }
    )
    return StatusDecision(begun, (_begun_event(transition, newest),))


def _begun_event(transition: Transition, newest: CheckpointPoint | None) -> Event:
    checkpoint = None if newest is None else f"the checkpoint of attempt {newest.attempt}, step {newest.step}"
    unchanged = "in new pods" if transition.cause is None else "in the same pods"
    pods = f"with new pods for workers {list(transition.workers)}" if transition.workers else unchanged
    reason = Reason.ATTEMPT_STARTED if transition.workers or transition.cause is None else Reason.RESTARTING_IN_PLACE
    return Event(reason, f"attempt {transition.attempt} begins from {checkpoint or 'the initial state'}, {pods}")


def renumber(view: JobView, workers: Sequence[int], *, anywhere: bool = False) -> StatusDecision:
    """Continue the preparation under a new number, because pods became unusable before the attempt began.

    Args:
        view: the job.
        workers: their pods are replaced.
        anywhere: the new pods avoid only the nodes that are doomed now, not those of the preparation.
    """
    status = view.status
    number = status.attempt + 1
    update: dict[str, object] = {"attempt": number}
    transition = status.transition
    if transition is not None:
        nodes = () if anywhere else transition.nodes
        update["transition"] = transition.model_copy(
            update={"attempt": number, "workers": _renumbered(view, transition, workers), "nodes": nodes}
        )
    why = "were not scheduled while they avoided nodes that are not doomed any more" if anywhere else "became unusable"
    message = f"attempt {number} is prepared instead: the pods of workers {sorted(workers)} {why}"
    renumbered = status.model_copy(update=update)
    if not anywhere:
        renumbered = setbacks.note(view, renumbered, workers)
        message = "; ".join([message, *setbacks.describe(renumbered)])
    return StatusDecision(renumbered, (Event(Reason.WORKERS_PENDING, message[:1024]),))


def _renumbered(view: JobView, transition: Transition, workers: Iterable[int]) -> tuple[int, ...]:
    """The workers that need a new pod under the new number; a usable pod of an earlier number is kept."""
    if transition.training:
        return transition.workers
    usable = {w.index for w in view.workers if view.usable(w.pod)}
    return tuple(sorted(set(workers) | (set(transition.workers) - usable)))
