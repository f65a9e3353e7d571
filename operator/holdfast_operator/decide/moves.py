"""Answering notices: save at once, make the replacement, train on, switch. Make before break.

notice seen ──► save asked ──► outcome known ──► replacement made ──► switch save ──► next attempt
                    │                │                  │
                    └── notice gone: the save stays, the move is called off
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast_contract.api import NoticeStatus, PreemptionStatus, SaveStatus, TrainingJobStatus, Transition
from holdfast_contract.reasons import Cause, Metric, Reason, SaveOutcome
from holdfast_operator.decide import attempts, causes, notices, progress, saves
from holdfast_operator.decide.actions import Count, Event, Turn
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.facts import PodFact
from holdfast_operator.decide.members import View
from holdfast_operator.decide.notices import Notice, Urgency

MOVE_LEAD_SECONDS: Final = 300.0
"""How long before the deadline of a planned notice the move begins: time for a replacement to be scheduled."""
SWITCH_MARGIN_SECONDS: Final = 8.0
"""How long before the deadline the switch happens even if the replacement is not there yet."""
SHORTEST_SAVE_SECONDS: Final = 1.0
"""A switch save with less time than this is not worth asking for."""
SWITCH_SAVE_SECONDS: Final = 60.0
"""Longest time for the save before a switch whose deadline is far away."""
HURRY_SECONDS: Final = 1.0
"""How much earlier a further notice's deadline must be to matter."""

_REASONS: Final = {
    SaveOutcome.COMMITTED: Reason.PREEMPTION_SAVED,
    SaveOutcome.FRESH: Reason.PREEMPTION_ALREADY_FRESH,
    SaveOutcome.TOO_LATE: Reason.PREEMPTION_TOO_LATE,
    SaveOutcome.CANCELLED: Reason.PREEMPTION_CANCELLED,
}


def answer_notices(view: View) -> Turn | None:
    """One step further in answering the notices that stand, or in taking the answer back."""
    if not view.status.active_attempt or view.preparing:
        return None
    standing = notices.find(view)
    record = view.status.preemption
    if not standing:
        gone = any(e.evidence.absent for e in causes.ends(view))  # with its worker, not withdrawn: recovery decides
        return _call_off(view) if record is not None and record.standing and not gone else None
    if record is None or not record.standing:
        return _begin(view, standing[0])
    if _earlier(record, standing[0]):
        return _hurry(view, record, standing[0])
    save = view.status.save
    if save is not None and save.purpose == "Preemption":
        return _settle(view, record, save)
    if any(not e.done and not e.stopped for e in causes.ends(view)):
        return None  # a worker has ended: recovery decides, and knows of the notices
    return _move(view, standing)


def _deadline(record: PreemptionStatus, view: View) -> datetime:
    return record.notice.deadline if record.notice is not None else view.now


def _notice(view: View, notice: Notice) -> NoticeStatus:
    return NoticeStatus(node=notice.node, source=notice.source, deadline=notice.deadline, noticed_at=view.now)


def _begin(view: View, notice: Notice) -> Turn | None:
    """The first notice: ask all workers to save before its deadline."""
    if any(not e.done for e in causes.ends(view)):
        return None  # too late to save in this attempt; recovery moves the doomed worker
    if progress.is_saved(view) and next(view.training(), None) is not None:
        return _begin_fresh(view, notice)
    status = saves.ask(view, "Preemption", notice.deadline)
    save_id = status.save.id if status.save is not None else ""
    record = PreemptionStatus(notice=_notice(view, notice), standing=True, save_id=save_id, outcome=SaveOutcome.PENDING)
    left = (notice.deadline - view.now).total_seconds()
    message = f"node {notice.node}: {notice.source}; {left:.0f} s left, save {save_id} asked for"
    event = Event(Reason.PREEMPTION_NOTICED, message, "Warning")
    return Turn(status.model_copy(update={"preemption": record}), (event,))


def _begin_fresh(view: View, notice: Notice) -> Turn:
    """A notice at a moment when nothing is unsaved: there is nothing to ask for."""
    newest = view.status.checkpoint.newest
    left = round((notice.deadline - view.now).total_seconds(), 3)
    record = PreemptionStatus(
        notice=_notice(view, notice),
        standing=True,
        outcome=SaveOutcome.FRESH,
        reason="no step was completed since the newest checkpoint",
        saved_step=newest.step if newest is not None else None,
        seconds_to_spare=left,
    )
    told = Event(Reason.PREEMPTION_NOTICED, f"node {notice.node}: {notice.source}; {left:.0f} s left", "Warning")
    fresh = Event(Reason.PREEMPTION_ALREADY_FRESH, record.reason)
    counts = (
        Count(Metric.PREEMPTION_SAVES, labels={"outcome": SaveOutcome.FRESH.value}),
        Count(Metric.PREEMPTION_SECONDS_TO_SPARE, left),
    )
    return Turn(view.status.model_copy(update={"preemption": record}), (told, fresh), counts)


def _earlier(record: PreemptionStatus, notice: Notice) -> bool:
    known = record.notice
    return known is None or (known.deadline - notice.deadline).total_seconds() > HURRY_SECONDS


def _hurry(view: View, record: PreemptionStatus, notice: Notice) -> Turn:
    """A further notice with less time: the earliest deadline holds. An open save is asked for anew with it."""
    status = view.status
    if status.save is not None and status.save.purpose == "Preemption":
        status = saves.ask(view, "Preemption", notice.deadline)
        record = record.model_copy(update={"save_id": status.save.id if status.save is not None else ""})
    if status.transition is not None:
        moved = status.transition.model_copy(update={"deadline": notice.deadline})
        status = status.model_copy(update={"transition": moved})
    record = record.model_copy(update={"notice": _notice(view, notice)})
    left = (notice.deadline - view.now).total_seconds()
    message = f"node {notice.node}: {notice.source}; only {left:.0f} s left now"
    event = Event(Reason.PREEMPTION_NOTICED, message, "Warning")
    return Turn(status.model_copy(update={"preemption": record}), (event,))


def _call_off(view: View) -> Turn:
    """All notices are gone: the save stays, the move is called off, training was never interrupted."""
    record = view.status.preemption
    pending = record is not None and record.outcome is SaveOutcome.PENDING
    update: dict[str, object] = {"standing": False}
    counts: tuple[Count, ...] = ()
    if pending:
        update |= {"outcome": SaveOutcome.CANCELLED, "reason": "the notice was withdrawn"}
        counts = (Count(Metric.PREEMPTION_SAVES, labels={"outcome": SaveOutcome.CANCELLED.value}),)
    closed = record.model_copy(update=update) if record is not None else None
    save = view.status.save
    if save is not None and save.purpose == "Switch":
        # The trainers were already told to stop: the switch goes through, only nobody is in a hurry any more.
        return _switch(view, "the notice was withdrawn during the switch")
    status = view.status.model_copy(update={"preemption": closed, "save": None, "transition": None})
    return Turn(status, (Event(Reason.PREEMPTION_CANCELLED, "the notice was withdrawn; no worker moves"),), counts)


def _settle(view: View, record: PreemptionStatus, save: SaveStatus) -> Turn | None:
    """The outcome of the save that answers the notice, once it is known. The worker moves whatever it is."""
    verdict = saves.judge(view, save)
    if verdict is None:
        return None
    spare = (_deadline(record, view) - view.now).total_seconds() if verdict.good else None
    closed = record.model_copy(
        update={
            "outcome": verdict.outcome,
            "reason": verdict.reason[:4096],
            "saved_step": verdict.step,
            "seconds_to_spare": round(spare, 3) if spare is not None else None,
        }
    )
    reason = _REASONS.get(verdict.outcome, Reason.PREEMPTION_SAVE_FAILED)
    message = (
        f"step {verdict.step} is committed with {spare:.1f} s to spare"
        if spare is not None
        else (f"no save before the deadline ({verdict.outcome.value}): {verdict.reason}")
    )
    counts = [Count(Metric.PREEMPTION_SAVES, labels={"outcome": verdict.outcome.value})]
    if spare is not None:
        counts.append(Count(Metric.PREEMPTION_SECONDS_TO_SPARE, spare))
    status = view.status.model_copy(update={"preemption": closed, "save": None})
    return Turn(status, (Event(reason, message, "Normal" if verdict.good else "Warning"),), tuple(counts))


def _move(view: View, standing: Sequence[Notice]) -> Turn | None:
    """Begin the move when it is due, keep it useful, and switch when the replacements are ready or time is up."""
    binding = [n for n in standing if n.urgency is not Urgency.ADVISORY]
    move = view.status.transition
    if move is None:
        return _prepare_move(view, binding) if binding and move_due_seconds(view, binding) <= 0 else None
    doomed = {i for n in binding for i in n.workers}
    if not doomed <= set(move.workers):
        return _widen(view, move, binding)
    broken = [w.index for w in view.workers if w.incoming is not None and not view.usable(w.incoming)]
    if broken:
        return attempts.renumber(view, broken)
    save = view.status.save
    if save is not None:
        verdict = saves.judge(view, save)
        if verdict is None:
            return None
        return _switch(view, f"saved step {verdict.step}" if verdict.good else f"not saved: {verdict.reason}")
    late = switch_left_seconds(view, move) <= 0
    return _last_save(view, move) if late or _replacements_ready(view, move) else None


def move_due_seconds(view: View, binding: Sequence[Notice]) -> float:
    """Seconds until the move begins: at once, unless all notices are plans for later."""
    if any(n.urgency is Urgency.IMMINENT for n in binding):
        return 0.0
    record = view.status.preemption
    earliest = _deadline(record, view) if record is not None else view.now
    return (earliest - view.now).total_seconds() - MOVE_LEAD_SECONDS


def switch_left_seconds(view: View, move: Transition) -> float:
    """Seconds until the switch happens at the latest."""
    if move.deadline is None:
        return 0.0
    return (move.deadline - view.now).total_seconds() - SWITCH_MARGIN_SECONDS


def _prepare_move(view: View, binding: Sequence[Notice]) -> Turn:
    """Number the next attempt and prepare it, while the active one trains on."""
    status = view.status
    number = status.attempt + 1
    workers = tuple(sorted({i for n in binding for i in n.workers}))
    nodes = tuple(sorted({n.node for n in binding if n.avoid}))
    record = status.preemption
    move = Transition(
        attempt=number,
        cause=Cause.PREEMPTION,
        training=True,
        workers=workers,
        nodes=nodes,
        began_at=view.now,
        deadline=_deadline(record, view) if record is not None else view.now,
    )
    message = f"attempt {number} is prepared: new pods for workers {list(workers)}, away from {list(nodes)}"
    event = Event(Reason.WORKERS_PENDING, message)
    return Turn(status.model_copy(update={"attempt": number, "transition": move}), (event,))


def _widen(view: View, move: Transition, binding: Sequence[Notice]) -> Turn:
    """A further notice dooms further workers: they move in the same switch."""
    wider = move.model_copy(
        update={
            "workers": tuple(sorted({*move.workers, *(i for n in binding for i in n.workers)})),
            "nodes": tuple(sorted({*move.nodes, *(n.node for n in binding if n.avoid)})),
        }
    )
    event = Event(Reason.PREEMPTION_NOTICED, f"workers {list(wider.workers)} move together", "Warning")
    return Turn(view.status.model_copy(update={"transition": wider}), (event,))


def _replacements_ready(view: View, move: Transition) -> bool:
    """Whether every worker of the next attempt could start now: a switch that must wait would cost what a crash does."""
    return all(_ready(view, w.incoming if w.index in move.workers else w.pod) for w in view.workers)


def _ready(view: View, pod: PodFact | None) -> bool:
    return view.usable(pod) and view.fresh(pod)


def _last_save(view: View, move: Transition) -> Turn:
    """Save what was trained since the notice and stop there, so that the switch loses no step."""
    fresh = progress.is_saved(view)
    deadline = view.now + timedelta(seconds=SWITCH_SAVE_SECONDS)
    if move.deadline is not None:
        deadline = min(deadline, move.deadline - timedelta(seconds=saves.LATE_ANSWER_SECONDS))
    left = (deadline - view.now).total_seconds()
    if fresh or left < SHORTEST_SAVE_SECONDS or next(view.training(), None) is None:
        return _switch(view, "nothing to save" if fresh else "no time to save")
    return Turn(saves.ask(view, "Switch", deadline))


def _switch(view: View, outcome: str) -> Turn:
    """The active attempt ends here, by a preemption that is counted now, and the prepared one follows."""
    move = view.status.transition
    record = view.status.preemption
    workers = move.workers if move is not None else ()
    message = f"workers {list(workers)} leave doomed nodes; {outcome}"
    status: TrainingJobStatus = attempts.finish(view, Cause.PREEMPTION, message=message)
    closed = record.model_copy(update={"standing": False}) if record is not None else None
    status = status.model_copy(update={"preemption": closed})
    turn = attempts.restart(view, status, Cause.PREEMPTION, workers=workers, nodes=(), why=message)
    return Turn(turn.status, (Event(Reason.WORKER_MOVED, message), *turn.events), turn.counts)


def close_by_end(view: View, status: TrainingJobStatus, cause: Cause, end: End | None) -> Turn:
    """What the end of the attempt makes of the answer to a notice: whatever was committed before it is the pin.

    A pod that was told to end may have saved and gone before its notice was seen here: that is an outcome too.
    """
    record = status.preemption
    if record is not None and record.standing and record.outcome is not SaveOutcome.PENDING:
        return Turn(status.model_copy(update={"preemption": record.model_copy(update={"standing": False})}))
    if record is None or not record.standing:
        pod = end.worker.pod if end is not None else None
        if cause not in {Cause.PREEMPTION, Cause.EVICTED} or pod is None:
            return Turn(status)
        source = f"pod {pod.disruption or 'SIGTERM'}"
        notice = NoticeStatus(node=pod.node, source=source, deadline=view.now, noticed_at=view.now)
        record = PreemptionStatus(notice=notice)
    newest, step = status.checkpoint.newest, progress.reached(view)
    saved = newest is not None and newest.attempt == view.status.active_attempt and newest.step >= step
    outcome = SaveOutcome.COMMITTED if saved else SaveOutcome.FAILED
    reason = "" if saved else "a worker ended before a save was committed"
    spare = max(0.0, (_deadline(record, view) - view.now).total_seconds())
    closed = record.model_copy(
        update={
            "standing": False,
            "outcome": outcome,
            "reason": reason,
            "saved_step": newest.step if saved and newest is not None else None,
            "seconds_to_spare": round(spare, 3) if saved else None,
        }
    )
    event = (
        Event(Reason.PREEMPTION_SAVED, f"step {closed.saved_step} was committed before the worker ended")
        if saved
        else Event(Reason.PREEMPTION_SAVE_FAILED, reason, "Warning")
    )
    count = Count(Metric.PREEMPTION_SAVES, labels={"outcome": outcome.value})
    return Turn(status.model_copy(update={"preemption": closed}), (event,), (count,))
