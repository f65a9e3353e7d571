"""The record of the binding preemption notice in the status: its deadline, and how an attempt's end closes it."""

from __future__ import annotations

from datetime import datetime

from holdfast_contract.api import NoticeStatus, PreemptionStatus, TrainingJobStatus
from holdfast_contract.reasons import Cause, Metric, Reason, SaveOutcome
from holdfast_operator.decide import step_progress
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView


def deadline(record: PreemptionStatus, view: JobView) -> datetime:
    """The notice's deadline; now, if the record names none."""
    return (record.notice.deadline if record.notice is not None else None) or view.now


def close_by_end(view: JobView, status: TrainingJobStatus, cause: Cause, end: End | None) -> StatusDecision:
    """Close the record when the attempt ends: the newest checkpoint becomes the notice's outcome.

    A pod may have saved and ended on SIGTERM before its notice was observed; that gets a record, too.

    Args:
        view: the job before the end.
        status: the status after the attempt's end.
        cause: why the attempt ended.
        end: the end of the first worker, if one ended.
    """
    record = status.preemption
    if record is not None and record.standing and record.outcome is not SaveOutcome.PENDING:
        return StatusDecision(status.model_copy(update={"preemption": record.model_copy(update={"standing": False})}))
    if record is None or not record.standing:
        record = _unnoticed(view, cause, end)
    return StatusDecision(status) if record is None else _close(view, status, record)


def _unnoticed(view: JobView, cause: Cause, end: End | None) -> PreemptionStatus | None:
    """The record of a preemption without a notice: the pod ended first."""
    pod = end.worker.pod if end is not None else None
    if cause not in {Cause.PREEMPTION, Cause.EVICTED} or pod is None:
        return None
    source = f"pod {pod.disruption or 'SIGTERM'}"
    return PreemptionStatus(notice=NoticeStatus(node=pod.node, source=source, deadline=view.now, noticed_at=view.now))


def _close(view: JobView, status: TrainingJobStatus, record: PreemptionStatus) -> StatusDecision:
    """The outcome is Committed if the newest checkpoint of this attempt contains every reported step, else Failed."""
    newest = status.checkpoint.newest
    current = newest is not None and newest.attempt == view.status.active_attempt
    saved = newest if newest is not None and current and newest.step >= step_progress.reached(view) else None
    outcome = SaveOutcome.FAILED if saved is None else SaveOutcome.COMMITTED
    reason = "a worker ended before a save was committed" if saved is None else ""
    spare = max(0.0, (deadline(record, view) - view.now).total_seconds())
    closed = record.model_copy(
        update={
            "standing": False,
            "outcome": outcome,
            "reason": reason,
            "saved_step": None if saved is None else saved.step,
            "seconds_to_spare": None if saved is None else round(spare, 3),
        }
    )
    if saved is None:
        event = Event(Reason.PREEMPTION_SAVE_FAILED, reason, "Warning")
    else:
        event = Event(Reason.PREEMPTION_SAVED, f"step {saved.step} was committed before the worker ended")
    count = Count(Metric.PREEMPTION_SAVES, labels={"outcome": outcome.value})
    return StatusDecision(status.model_copy(update={"preemption": closed}), (event,), (count,))
