"""How often training failed, in how much time: what the adaptive checkpoint interval of later attempts follows."""

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
"""Where the seconds go in which a trainer runs, and may fail."""
WARNED: Final = frozenset({Cause.PREEMPTION, Cause.EVICTED})
"""Ends that are announced: where the last step was saved in time, no shorter interval would have helped."""


def after_end(status: TrainingJobStatus, cause: Cause, *, lost_steps: int) -> FailureStatus:
    """The count once the active attempt has ended for this cause with so many steps that no checkpoint has."""
    prepared = cause is Cause.USER_REQUEST or (cause in WARNED and lost_steps == 0)
    known = status.failures
    return known if prepared else known.model_copy(update={"count": known.count + 1})


def at_attempt_start(status: TrainingJobStatus) -> FailureStatus:
    """As it stands when an attempt begins: later seconds are counted by the attempt itself."""
    spent = job_goodput.milliseconds(status)
    seconds = sum(spent.get(bucket.value, 0) for bucket in RUNNING) / 1000
    return status.failures.model_copy(update={"running_seconds": seconds})


def history(status: TrainingJobStatus) -> FailureHistory:
    """What the active attempt is told."""
    return FailureHistory(status.failures.count, status.failures.running_seconds)
