"""Rule: answer preemption notices. All workers save at once; then the affected workers are replaced.

notice ──► save requested ──► outcome known ──► replacement (``replacement``) ──► switch to the next attempt
               │                   │                  │
               └───────────────────┴──────────────────┴── notice withdrawn: replacement cancelled, training continues
"""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import NoticeStatus, PreemptionStatus, SaveStatus
from holdfast_contract.api_status import MAX_MESSAGE
from holdfast_contract.reasons import Metric, Reason, SaveOutcome
from holdfast_operator.decide import causes, notices, preemption_record, replacement, requested_saves, step_progress
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notices import Notice

EARLIER_SECONDS: Final = 1.0
"""A further notice matters if its deadline is earlier by more than this."""

_REASONS: Final = {
    SaveOutcome.COMMITTED: Reason.PREEMPTION_SAVED,
    SaveOutcome.FRESH: Reason.PREEMPTION_ALREADY_FRESH,
    SaveOutcome.TOO_LATE: Reason.PREEMPTION_TOO_LATE,
    SaveOutcome.CANCELLED: Reason.PREEMPTION_CANCELLED,
}


def answer_notices(view: JobView) -> StatusDecision | None:
    """The next step in answering the standing notices, or in cancelling the answer if they were withdrawn."""
    if not view.status.active_attempt or view.preparing:
        return None
    standing = notices.find(view)
    record = view.status.preemption
    if not standing:
        # A notice that is gone together with its pod was not withdrawn: ``recover`` decides.
        gone = any(e.evidence.absent for e in causes.ends(view))
        return replacement.cancel_replacement(view) if record is not None and record.standing and not gone else None
    if record is None or not record.standing:
        return _begin(view, standing[0])
    if _is_earlier(record, standing[0]):
        return _advance_deadline(view, record, standing[0])
    save = view.status.save
    if save is not None and save.purpose == "Preemption":
        return _settle(view, record, save)
    if any(not e.done and not e.stopped for e in causes.ends(view)):
        return None  # a worker has ended: ``recover`` decides, and takes the notices into account
    return replacement.replace_workers(view, standing)


def _notice(view: JobView, notice: Notice) -> NoticeStatus:
    return NoticeStatus(node=notice.node, source=notice.source, deadline=notice.deadline, noticed_at=view.now)


def _begin(view: JobView, notice: Notice) -> StatusDecision | None:
    """The first notice: request a save of all workers before its deadline."""
    if any(not e.done for e in causes.ends(view)):
        return None  # too late to save in this attempt; ``recover`` replaces the affected worker
    if step_progress.is_saved(view) and next(view.training(), None) is not None:
        return _begin_fresh(view, notice)
    status = requested_saves.request_save(view, "Preemption", notice.deadline)
    save_id = status.save.id if status.save is not None else ""
    record = PreemptionStatus(notice=_notice(view, notice), standing=True, save_id=save_id, outcome=SaveOutcome.PENDING)
    event = _noticed(view, notice, f"all workers save now (save {save_id})")
    return StatusDecision(status.model_copy(update={"preemption": record}), (event,))


def _noticed(view: JobView, notice: Notice, consequence: str) -> Event:
    left = (notice.deadline - view.now).total_seconds()
    what = f"workers {list(notice.workers)} on node {notice.node}: {notice.source}, {left:.0f} s until the deadline"
    return Event(Reason.PREEMPTION_NOTICED, f"{what}; {consequence}", "Warning")


def _begin_fresh(view: JobView, notice: Notice) -> StatusDecision:
    """A notice while every completed step is saved: no save is requested."""
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
    noticed = _noticed(view, notice, "every completed step is saved already")
    fresh = Event(Reason.PREEMPTION_ALREADY_FRESH, record.reason)
    counts = (
        Count(Metric.PREEMPTION_SAVES, labels={"outcome": SaveOutcome.FRESH.value}),
        Count(Metric.PREEMPTION_SECONDS_TO_SPARE, left),
    )
    return StatusDecision(view.status.model_copy(update={"preemption": record}), (noticed, fresh), counts)


def _is_earlier(record: PreemptionStatus, notice: Notice) -> bool:
    known = record.notice
    return known is None or (known.deadline - notice.deadline).total_seconds() > EARLIER_SECONDS


def _advance_deadline(view: JobView, record: PreemptionStatus, notice: Notice) -> StatusDecision:
    """A further notice with an earlier deadline: that deadline now holds, also for an open save request."""
    status = view.status
    if status.save is not None and status.save.purpose == "Preemption":
        status = requested_saves.request_save(view, "Preemption", notice.deadline)
        record = record.model_copy(update={"save_id": status.save.id if status.save is not None else ""})
    if status.transition is not None:
        sooner = status.transition.model_copy(update={"deadline": notice.deadline})
        status = status.model_copy(update={"transition": sooner})
    record = record.model_copy(update={"notice": _notice(view, notice)})
    event = _noticed(view, notice, "this deadline is earlier than the one before")
    return StatusDecision(status.model_copy(update={"preemption": record}), (event,))


def _settle(view: JobView, record: PreemptionStatus, save: SaveStatus) -> StatusDecision | None:
    """Record the outcome of the notice's save once it is known. Whatever it is, the worker is replaced afterwards."""
    verdict = requested_saves.judge(view, save)
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
    if spare is not None:
        message = f"step {verdict.step} was committed with {spare:.1f} s to spare"
    else:
        message = f"no save was committed before the deadline ({verdict.outcome.value}): {verdict.reason}"
    counts = [Count(Metric.PREEMPTION_SAVES, labels={"outcome": verdict.outcome.value})]
    if spare is not None:
        counts.append(Count(Metric.PREEMPTION_SECONDS_TO_SPARE, spare))
    status = view.status.model_copy(update={"preemption": closed, "save": None})
    return StatusDecision(
        status, (Event(reason, message, "Normal" if verdict.outcome.is_saved else "Warning"),), tuple(counts)
    )
