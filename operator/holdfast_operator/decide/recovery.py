"""Recovery: an attempt has ended before training did, or what was prepared for the next has become useless."""

from __future__ import annotations

from typing import Final

from holdfast_contract.reasons import Cause, Reason
from holdfast_operator.decide import attempts, budget, causes, lifecycle, moves, notices
from holdfast_operator.decide.actions import Event, Turn, Wait
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import View

PLACE_SECONDS: Final = 60.0
"""How long a pod may wait for a place that meets the notices of the time at which it was made."""


def recover(view: View) -> Turn | Wait | None:
    """An attempt ended: name the first culprit, count one cause, go on with the next number or give up."""
    if not view.status.active_attempt or view.preparing:
        return None
    found = _bad_ends(view)
    if not found:
        return _finish_or_hang(view)
    open_seconds = causes.open_seconds(view, found)
    if open_seconds > 0:
        if view.status.end_seen_at is None:
            return Turn(view.status.model_copy(update={"end_seen_at": view.now}))
        return Wait(min(open_seconds, lifecycle.POLL_SECONDS))
    return _end_attempt(view, found)


def _bad_ends(view: View) -> tuple[End, ...]:
    """Ends that are neither completion nor an answer to a save that stops the trainers."""
    save = view.status.save
    found = causes.ends(view)
    if save is None or not save.stop:
        return tuple(e for e in found if not e.done)
    # Whoever stops first may take the others down with the collective; that is the stop's doing.
    answered = any(e.stopped or e.done for e in found)
    return tuple(e for e in found if not e.done and not e.stopped and not (answered and e.aborted))


def _finish_or_hang(view: View) -> Turn | Wait | None:
    """Some workers are done and others train on: they get a limit, since a collective may wait for the gone."""
    done = [e for e in causes.ends(view) if e.done]
    since = view.status.end_seen_at
    if not done or len(done) == view.spec.replicas:
        return Turn(view.status.model_copy(update={"end_seen_at": None})) if since is not None and not done else None
    if since is None:
        return Turn(view.status.model_copy(update={"end_seen_at": view.now}))
    left = lifecycle.COMPLETION_SECONDS - (view.now - since).total_seconds()
    if left > 0:
        return Wait(left)
    why = f"workers {[e.worker.index for e in done]} finished and the others did not within the limit"
    return _conclude(view, Cause.HANG, None, tuple(done), why)


def _end_attempt(view: View, found: tuple[End, ...]) -> Turn:
    first = causes.culprit(found)
    silent = _silent(view, found) if first.aborted else ()
    if silent:
        why = f"workers {list(silent)} fell silent and the others were torn down with them"
        return _conclude(view, Cause.POD_LOST, None, found, why, more_workers=silent)
    doomed = {i for n in notices.find(view) for i in n.workers}
    preempted = first.worker.index in doomed or _went_as_noticed(view, first)
    preempted = preempted and view.status.preemption is not None and view.status.preemption.standing
    cause = Cause.PREEMPTION if preempted else first.cause
    return _conclude(view, cause, first, found, first.sentence)


def _went_as_noticed(view: View, end: End) -> bool:
    """Whether a pod that is gone without a trace is the one whose end was announced: the status remembers the notice."""
    record, move = view.status.preemption, view.status.transition
    if not end.evidence.absent or record is None or record.notice is None:
        return False
    return (move is not None and end.worker.index in move.workers) or record.notice.node not in view.by_node


def _silent(view: View, found: tuple[End, ...]) -> tuple[int, ...]:
    """Workers that have not ended and have not spoken since the first end was seen."""
    if len(found) == view.spec.replicas or view.status.end_seen_at is None:
        return ()
    ended = {e.worker.index for e in causes.ends(view)}
    age = (view.now - view.status.end_seen_at).total_seconds()
    heard = {w.index: view.heard(w.pod) for w in view.workers if w.index not in ended}
    return tuple(i for i, h in heard.items() if h is None or h.age_seconds >= age)


def _conclude(
    view: View,
    cause: Cause,
    first: End | None,
    found: tuple[End, ...],
    why: str,
    *,
    more_workers: tuple[int, ...] = (),
) -> Turn:
    """Count the end of the active attempt once and go on, or give up if the budget is spent."""
    status = attempts.finish(view, cause, message=why, end=first)
    status = budget.charge(view, status, cause)
    events = [Event(_event_reason(cause), f"attempt {view.status.active_attempt}: {why}", "Warning")]
    answered = moves.close_by_end(view, status, cause, first)
    status, events, counts = answered.status, [*events, *answered.events], [*answered.counts]
    spent = budget.exhausted(view, status) if cause.budgeted else None
    if spent is not None:
        turn = lifecycle.fail(view, status, *spent)
    else:
        warned = notices.find(view)
        doomed = {i for n in warned if n.urgency is not notices.Urgency.ADVISORY for i in n.workers}
        gone = {e.worker.index for e in found if e.pod_is_gone}
        nodes = {n.node for n in warned if n.avoid} | {
            e.worker.pod.node for e in found if e.evidence.node_lost and e.worker.pod is not None
        }
        turn = attempts.restart(view, status, cause, workers=gone | doomed | {*more_workers}, nodes=nodes, why=why)
    return Turn(turn.status, (*events, *turn.events), (*counts, *turn.counts))


def _event_reason(cause: Cause) -> Reason:
    return {Cause.NODE_LOST: Reason.NODE_LOST, Cause.POD_LOST: Reason.POD_LOST}.get(cause, Reason.WORKER_CRASHED)


def prepare(view: View) -> Turn | None:
    """While the next attempt (or the first look into the run's folder) is being prepared: begin it, or mend it."""
    waiting_for_first = not view.status.active_attempt and view.status.transition is None
    if not view.preparing and not waiting_for_first:
        return None
    number = view.status.attempt
    new = [w for w in view.workers if w.pod is not None and w.pod.created_in_attempt == number]
    failed = [e for e in causes.ends(view) if e.worker in new and e.worker.pod is not None and e.worker.pod.finished]
    if failed:
        return _failed_before_start(view, causes.culprit(tuple(failed)))
    useless = [w.index for w in new if not view.usable(w.pod)]
    if useless:
        return attempts.renumber(view, useless)
    barred = _barred(view)
    if barred:
        return attempts.renumber(view, barred, anywhere=True)
    return attempts.begin_if_ready(view, view.status)


def patience_left_seconds(view: View) -> float:
    """Seconds until a pod that finds no place may also go where this preparation did not want it; 0: now."""
    move = view.status.transition
    if move is None or move.training or move.began_at is None:
        return 0.0
    return max(0.0, PLACE_SECONDS - (view.now - move.began_at).total_seconds())


def _barred(view: View) -> list[int]:
    """Workers whose pods find no place for too long and are kept off nodes that are no longer known to be doomed.

    A pod is made for the notices of its time, and its affinity never changes: a node that was cordoned then may be the
    only one with room now. The scheduler itself heeds cordons and taints, and a notice that comes again moves it again.
    """
    if view.status.transition is None or patience_left_seconds(view) > 0:
        return []
    doomed = notices.doomed_nodes(view)
    pods = [(w.index, w.pod) for w in view.workers if w.pod is not None]
    return [index for index, pod in pods if not pod.node and pod.avoids - doomed]


def _failed_before_start(view: View, end: End) -> Turn:
    """A pod ended before its attempt began: counted like any end of its cause, so that it cannot go on for ever."""
    status = budget.charge(view, view.status, end.cause)
    event = Event(Reason.WORKER_CRASHED, f"{end.sentence} before its attempt began", "Warning")
    spent = budget.exhausted(view, status) if end.cause.budgeted else None
    if spent is not None:
        turn = lifecycle.fail(view, status, *spent)
    else:
        turn = attempts.renumber(view.under(status), [end.worker.index])
    return Turn(turn.status, (event, *turn.events), turn.counts)
