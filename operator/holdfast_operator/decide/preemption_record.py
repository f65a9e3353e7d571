"""The record of the newest preemption notice in the status: its deadline, and what the end of an attempt makes of it."""

from __future__ import annotations

from datetime import datetime

from holdfast_contract.api import NoticeStatus, PreemptionStatus, TrainingJobStatus
from holdfast_contract.reasons import Cause, Metric, Reason, SaveOutcome
from holdfast_operator.decide import step_progress
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView


def deadline(record: PreemptionStatus, view: JobView) -> datetime:
    return record.notice.deadline if record.notice is not None else view.now


def close_by_end(view: JobView, status: TrainingJobStatus, cause: Cause, end: End | None) -> StatusDecision:
    """What the end of the attempt makes of the answer to a notice: whatever was committed before it is the pin.

    A pod that was told to end may have saved and gone before its notice was seen here: that is an outcome too.
    """
    record = status.preemption
    if record is not None and record.standing and record.outcome is not SaveOutcome.PENDING:
        return StatusDecision(status.model_copy(update={"preemption": record.model_copy(update={"standing": False})}))
    if record is None or not record.standing:
        pod = end.worker.pod if end is not None else None
        if cause not in {Cause.PREEMPTION, Cause.EVICTED} or pod is None:
            return StatusDecision(status)
        source = f"pod {pod.disruption or 'SIGTERM'}"
        notice = NoticeStatus(node=pod.node, source=source, deadline=view.now, noticed_at=view.now)
        record = PreemptionStatus(notice=notice)
    newest, step = status.checkpoint.newest, step_progress.reached(view)
    saved = newest is not None and newest.attempt == view.status.active_attempt and newest.step >= step
    outcome = SaveOutcome.COMMITTED if saved else SaveOutcome.FAILED
    reason = "" if saved else "a worker ended before a save was committed"
    spare = max(0.0, (deadline(record, view) - view.now).total_seconds())
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
    return StatusDecision(status.model_copy(update={"preemption": closed}), (event,), (count,))
