"""How often training failed in how much time, from which later attempts compute their checkpoint interval."""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import FailureStatus, TrainingJobStatus
from holdfast_contract.reasons import Bucket, Cause
from holdfast_contract.sync import FailureHistory
from holdfast_operator.decide import job_goodput

RUNNING: Final = (
    Bucket.PRODUCTIVE,
    Bucket.REWORK,
    Bucket.STARTUP,
    Bucket.RESTORE,
    Bucket.COMPILE,
    Bucket.SAVE_STALL,
)
"""The goodput buckets of time in which a trainer runs, and so may fail."""
WARNED: Final = frozenset({Cause.PREEMPTION, Cause.EVICTED})
"""Announced ends: if the last step was saved in time, a shorter interval would not have helped."""


def after_end(status: TrainingJobStatus, cause: Cause, *, lost_steps: int) -> FailureStatus:
    """The history after the active attempt has ended.

    Args:
        status: the status before the end.
        cause: why the attempt ended.
        lost_steps: completed steps that no checkpoint contains.
    """
    prepared = cause is Cause.USER_REQUEST or (cause in WARNED and lost_steps == 0)
    known = status.failures
    return known if prepared else known.model_copy(update={"count": known.count + 1})


def at_attempt_start(status: TrainingJobStatus) -> FailureStatus:
    """The history at the beginning of an attempt, which counts its own seconds itself."""
    spent = job_goodput.milliseconds(status)
    seconds = sum(spent.get(bucket.value, 0) for bucket in RUNNING) / 1000
    return status.failures.model_copy(update={"running_seconds": seconds})


def history(status: TrainingJobStatus) -> FailureHistory:
    """The history as directives carry it to the active attempt."""
    return FailureHistory(status.failures.count, status.failures.running_seconds)
