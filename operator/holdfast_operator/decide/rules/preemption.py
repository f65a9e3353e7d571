"""Answering preemption notices: save at once, then replace the doomed workers (``replacement``).

notice seen ──► save asked ──► outcome known ──► replacement
                    │                │                │
                    └── notice gone: the save stays, the replacement is called off
"""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import NoticeStatus, PreemptionStatus, SaveStatus
from holdfast_contract.api_status import MAX_MESSAGE
from holdfast_contract.reasons import Metric, Reason, SaveOutcome
from holdfast_operator.decide import causes, notices, preemption_record, progress, replacement, saves
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notices import Notice

HURRY_SECONDS: Final = 1.0
"""How much earlier a further notice's deadline must be to matter."""

_REASONS: Final = {
    SaveOutcome.COMMITTED: Reason.PREEMPTION_SAVED,
    SaveOutcome.FRESH: Reason.PREEMPTION_ALREADY_FRESH,
    SaveOutcome.TOO_LATE: Reason.PREEMPTION_TOO_LATE,
    SaveOutcome.CANCELLED: Reason.PREEMPTION_CANCELLED,
}


def answer_notices(view: JobView) -> StatusDecision | None:
    """One step further in answering the notices that stand, or in taking the answer back."""
    if not view.status.active_attempt or view.preparing:
        return None
    standing = notices.find(view)
    record = view.status.preemption
    if not standing:
        gone = any(e.evidence.absent for e in causes.ends(view))  # with its worker, not withdrawn: recovery decides
        return replacement.call_off(view) if record is not None and record.standing and not gone else None
    if record is None or not record.standing:
        return _begin(view, standing[0])
    if _earlier(record, standing[0]):
        return _hurry(view, record, standing[0])
    save = view.status.save
    if save is not None and save.purpose == "Preemption":
        return _settle(view, record, save)
    if any(not e.done and not e.stopped for e in causes.ends(view)):
        return None  # a worker has ended: recovery decides, and knows of the notices
    return replacement.replace_workers(view, standing)


def _notice(view: JobView, notice: Notice) -> NoticeStatus:
    return NoticeStatus(node=notice.node, source=notice.source, deadline=notice.deadline, noticed_at=view.now)


def _begin(view: JobView, notice: Notice) -> StatusDecision | None:
    """The first notice: ask all workers to save before its deadline."""
    if any(not e.done for e in causes.ends(view)):
        return None  # too late to save in this attempt; recovery replaces the doomed worker
    if progress.is_saved(view) and next(view.training(), None) is not None:
        return _begin_fresh(view, notice)
    status = saves.ask(view, "Preemption", notice.deadline)
    save_id = status.save.id if status.save is not None else ""
    record = PreemptionStatus(notice=_notice(view, notice), standing=True, save_id=save_id, outcome=SaveOutcome.PENDING)
    left = (notice.deadline - view.now).total_seconds()
    message = f"node {notice.node}: {notice.source}; {left:.0f} s left, save {save_id} asked for"
    event = Event(Reason.PREEMPTION_NOTICED, message, "Warning")
    return StatusDecision(status.model_copy(update={"preemption": record}), (event,))


def _begin_fresh(view: JobView, notice: Notice) -> StatusDecision:
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
    return StatusDecision(view.status.model_copy(update={"preemption": record}), (told, fresh), counts)


def _earlier(record: PreemptionStatus, notice: Notice) -> bool:
    known = record.notice
    return known is None or (known.deadline - notice.deadline).total_seconds() > HURRY_SECONDS


def _hurry(view: JobView, record: PreemptionStatus, notice: Notice) -> StatusDecision:
    """A further notice with less time: the earliest deadline holds. An open save is asked for anew with it."""
    status = view.status
    if status.save is not None and status.save.purpose == "Preemption":
        status = saves.ask(view, "Preemption", notice.deadline)
        record = record.model_copy(update={"save_id": status.save.id if status.save is not None else ""})
    if status.transition is not None:
        sooner = status.transition.model_copy(update={"deadline": notice.deadline})
        status = status.model_copy(update={"transition": sooner})
    record = record.model_copy(update={"notice": _notice(view, notice)})
    left = (notice.deadline - view.now).total_seconds()
    message = f"node {notice.node}: {notice.source}; only {left:.0f} s left now"
    event = Event(Reason.PREEMPTION_NOTICED, message, "Warning")
    return StatusDecision(status.model_copy(update={"preemption": record}), (event,))


def _settle(view: JobView, record: PreemptionStatus, save: SaveStatus) -> StatusDecision | None:
    """The outcome of the save that answers the notice, once it is known. The worker is replaced whatever the outcome is."""
    verdict = saves.judge(view, save)
    if verdict is None:
        return None
    spare = (preemption_record.deadline(record, view) - view.now).total_seconds() if verdict.outcome.is_saved else None
    closed = record.model_copy(
        update={
            "outcome": verdict.outcome,
            "reason": verdict.reason[:MAX_MESSAGE],
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
    return StatusDecision(
        status, (Event(reason, message, "Normal" if verdict.outcome.is_saved else "Warning"),), tuple(counts)
    )
