"""The end of a job, successful or not: what remains in the status, and the job's limits of time."""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.reasons import Bucket, Condition, Reason
from holdfast_operator.decide import conditions, job_goodput
from holdfast_operator.decide.actions import Event, StatusDecision
from holdfast_operator.decide.members import JobView

COMPLETION_SECONDS: Final = 60.0
"""How long the other workers may continue after the first has finished training."""
IDLE_SECONDS: Final = 300.0
"""How often a job is checked in which nothing is expected to happen."""


def close(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status of a job that ends now: nothing is open or in preparation any more."""
    record = status.preemption
    return status.model_copy(
        update={
            "completion_time": view.now,
            "transition": None,
            "save": None,
            "end_seen_at": None,
            "preemption": record.model_copy(update={"standing": False}) if record is not None else None,
            "notices": (),
            "setbacks": (),
        }
    )


def fail(view: JobView, status: TrainingJobStatus, reason: Reason, message: str) -> StatusDecision:
    """The job fails. Its checkpoints stay.

    Args:
        view: the job.
        status: the status after the attempt's end.
        reason: reason of the condition and the Event.
        message: what happened.
    """
    failed = conditions.put(view, close(view, status), Condition.FAILED, value="True", reason=reason, message=message)
    return StatusDecision(failed, (Event(reason, message, "Warning"),))


def ttl_left_seconds(view: JobView) -> float | None:
    """Seconds until a finished job is deleted (spec.ttlSecondsAfterFinished); None: never."""
    ttl, since = view.spec.ttl_seconds_after_finished, view.status.completion_time
    if ttl is None or since is None or not conditions.finished(view.status):
        return None
    return ttl - (view.now - since).total_seconds()


def active_seconds(view: JobView) -> float:
    """The job's age in seconds, without the time for which it was suspended."""
    suspended = job_goodput.milliseconds(view.status).get(Bucket.SUSPENDED.value, 0) / 1000
    until = view.status.goodput.accounted_until
    if conditions.holds(view.status, Condition.SUSPENDED) and until is not None:
        suspended += (view.now - until).total_seconds()
    return (view.now - job_goodput.begun(view)).total_seconds() - suspended
