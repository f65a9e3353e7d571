"""Rule: an attempt has ended before training was finished. Name the cause, count it once, number the next attempt.

first worker ends ──► wait while its end may only follow another's ──► cause ──► budget left: next attempt prepared
                                                                            └──► budget spent: the job fails
"""

from __future__ import annotations

from typing import Final, Literal

from holdfast_contract.reasons import Cause, Reason
from holdfast_operator.decide import (
    attempts,
    causes,
    ending,
    failure_budget,
    notice_memory,
    notices,
    preemption_record,
    stopping,
)
from holdfast_operator.decide.actions import Event, StatusDecision, Wait
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import SILENT_SECONDS, JobView

_EVENT_REASONS: Final = {
    Cause.NODE_LOST: Reason.NODE_LOST,
    Cause.POD_LOST: Reason.POD_LOST,
    Cause.PREEMPTION: Reason.WORKER_STOPPED,
    Cause.EVICTED: Reason.WORKER_STOPPED,
    Cause.ORPHANED: Reason.WORKER_STOPPED,
}
_ANNOUNCED: Final = frozenset({Cause.PREEMPTION, Cause.EVICTED, Cause.NODE_LOST, Cause.POD_LOST})


def recover(view: JobView) -> StatusDecision | Wait | None:
    """End the active attempt if a worker ended it: find the culprit, count its cause, prepare the next attempt or fail."""
    if not view.status.active_attempt or view.preparing:
        return None
    found = _bad_ends(view)
    if not found:
        return _finish_or_hang(view)
    open_seconds = causes.open_seconds(view, found)
    if open_seconds > 0:
        if view.status.end_seen_at is None:
            return StatusDecision(view.status.model_copy(update={"end_seen_at": view.now}))
        return Wait(min(open_seconds, stopping.POLL_SECONDS))
    return _end_attempt(view, found)


def _bad_ends(view: JobView) -> tuple[End, ...]:
    """Ends that are neither completion nor the result of a save that stops the trainers."""
    save = view.status.save
    found = causes.ends(view)
    if save is None or not save.stop:
        return tuple(e for e in found if not e.done)
    # The first trainer that stops may abort the others through a collective; that is part of the stop.
    answered = any(e.stopped or e.done for e in found)
    return tuple(e for e in found if not e.done and not e.stopped and not (answered and e.aborted))


def _finish_or_hang(view: JobView) -> StatusDecision | Wait | None:
    """Some workers have finished and others still train: limit their time, since a collective may hang."""
    done = [e for e in causes.ends(view) if e.done]
    since = view.status.end_seen_at
    if not done and since is not None and view.observed.term_seconds >= SILENT_SECONDS:  # else ends are not heard yet
        return StatusDecision(view.status.model_copy(update={"end_seen_at": None}))
    if not done or len(done) == view.spec.replicas:
        return None
    if since is None:
        return StatusDecision(view.status.model_copy(update={"end_seen_at": view.now}))
    left = ending.COMPLETION_SECONDS - (view.now - since).total_seconds()
    if left > 0:
        return Wait(left)
    finished = [e.worker.index for e in done]
    why = f"workers {finished} finished training, the others did not within {ending.COMPLETION_SECONDS:.0f} s"
    return _conclude(view, Cause.HANG, None, tuple(done), why)


def _end_attempt(view: JobView, found: tuple[End, ...]) -> StatusDecision:
    first = causes.culprit(found)
    silent = _silent(view, found) if first.aborted else ()
    if silent:
        why = f"the agents of workers {list(silent)} stopped reporting, and the trainers of the others aborted"
        return _conclude(view, Cause.POD_LOST, None, found, why, more_workers=silent)
    preempted = _came_true(view, first) or _went_as_noticed(view, first)
    preempted = preempted and view.status.preemption is not None and view.status.preemption.standing
    cause = Cause.PREEMPTION if preempted else first.cause
    return _conclude(view, cause, first, found, first.sentence)


def _came_true(view: JobView, end: End) -> bool:
    """Whether the end is what a notice for this worker announced.

    Under a planned notice the machine may run for days: only the end of the pod or the node is meant.
    """
    warned = notice_memory.urgencies(view, end.worker.index)
    if notices.Urgency.IMMINENT in warned:
        return True
    return notices.Urgency.PLANNED in warned and end.cause in _ANNOUNCED


def _went_as_noticed(view: JobView, end: End) -> bool:
    """Whether a pod that no longer exists is the one that the recorded notice announced."""
    record, transition = view.status.preemption, view.status.transition
    if not end.evidence.absent or record is None or record.notice is None:
        return False
    return (transition is not None and end.worker.index in transition.workers) or record.notice.node not in view.by_node


def _silent(view: JobView, found: tuple[End, ...]) -> tuple[int, ...]:
    """Workers that have not ended and have not reported since the first end was seen."""
    if len(found) == view.spec.replicas or view.status.end_seen_at is None:
        return ()
    ended = {e.worker.index for e in causes.ends(view)}
    age = (view.now - view.status.end_seen_at).total_seconds()
    rest = (w for w in view.workers if w.index not in ended)
    # An agent that this operator has never heard: it may lead for less time than the end is old.
    return tuple(
        w.index for w in rest if view.silent_seconds(w.pod) >= (age if view.last_report(w.pod) else SILENT_SECONDS)
    )


def _conclude(
    view: JobView,
    cause: Cause,
    first: End | None,
    found: tuple[End, ...],
    why: str,
    *,
    more_workers: tuple[int, ...] = (),
) -> StatusDecision:
    """Count the end of the active attempt once. Prepare the next attempt, or fail if the budget is spent.

    ``more_workers`` need new pods besides those whose pods are gone or doomed.
    """
    status = attempts.finish(view, cause, message=why, end=first)
    status = failure_budget.charge(view, status, cause)
    kind: Literal["Normal", "Warning"] = "Normal" if first is not None and first.saved else "Warning"
    events = [Event(_event_reason(cause), f"attempt {view.status.active_attempt} ended: {why}", kind)]
    answered = preemption_record.close_by_end(view, status, cause, first)
    status, events, counts = answered.status, [*events, *answered.events], [*answered.counts]
    spent = failure_budget.exhausted(view, status) if cause.budgeted else None
    if spent is not None:
        decision = ending.fail(view, status, *spent)
    else:
        warned = notices.find(view)
        doomed = {i for n in warned if n.urgency is not notices.Urgency.ADVISORY for i in n.workers}
        gone = {e.worker.index for e in found if e.pod_is_gone}
        nodes = {n.node for n in warned if n.avoid} | {
            e.worker.pod.node for e in found if e.evidence.node_lost and e.worker.pod is not None
        }
        decision = attempts.restart(view, status, cause, workers=gone | doomed | {*more_workers}, nodes=nodes, why=why)
    return StatusDecision(decision.status, (*events, *decision.events), (*counts, *decision.counts))


def _event_reason(cause: Cause) -> Reason:
    """The Event's reason. A worker that the platform or its agent stopped has not crashed."""
    return _EVENT_REASONS.get(cause, Reason.WORKER_CRASHED)
