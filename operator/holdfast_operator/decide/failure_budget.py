"""How many failures a job may have: a sliding window, and a limit of failures in a row without a new checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.reasons import Cause, Reason
from holdfast_operator.decide.members import JobView


def charge(view: JobView, status: TrainingJobStatus, cause: Cause) -> TrainingJobStatus:
    """The status after a failure was counted; unchanged if the cause does not count.

    Args:
        view: the job.
        status: the status after the attempt's end.
        cause: why the attempt ended.
    """
    if not cause.budgeted:
        return status
    newest = status.checkpoint.newest
    progressed = newest is not None and newest.attempt == status.active_attempt
    # Storage that is away for minutes says nothing about the program: only the limit of failures in a window counts.
    in_vain = status.no_progress + (cause is not Cause.STORAGE_ERROR)
    return status.model_copy(
        update={
            "failure_times": (*_in_window(view, status.failure_times), view.now),
            "no_progress": 0 if progressed else in_vain,
        }
    )


def exhausted(view: JobView, status: TrainingJobStatus) -> tuple[Reason, str] | None:
    """Reason and message if the budget is spent, so that the job must fail; else None."""
    recovery = view.spec.recovery
    count = len(_in_window(view, status.failure_times))
    if count > recovery.max_failures:
        allowed = f"recovery.maxFailures allows {recovery.max_failures}"
        failures = f"{count} failures within {recovery.window_seconds} s; {allowed}"
        return Reason.RESTART_BUDGET_EXHAUSTED, failures + _last(status)
    if status.no_progress >= recovery.no_progress_limit:
        limit = f"recovery.noProgressLimit is {recovery.no_progress_limit}"
        failures = f"{status.no_progress} failed attempts in a row without a new checkpoint; {limit}"
        return Reason.NO_PROGRESS, failures + _last(status)
    return None


def _last(status: TrainingJobStatus) -> str:
    return f"; the last end: {status.last_end.message}"[:512] if status.last_end is not None else ""


def _in_window(view: JobView, times: tuple[datetime, ...]) -> tuple[datetime, ...]:
    oldest = view.now - timedelta(seconds=view.spec.recovery.window_seconds)
    return tuple(t for t in times if t > oldest)
