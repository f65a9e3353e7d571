"""How long to wait before something is tried again that has failed several times in a row."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Final

from holdfast_contract.api import TrainingJobStatus

FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 300.0
JITTER: Final = 0.25
"""A wait is longer by up to this share, so that jobs that failed together do not return together."""


def wait_seconds(seed: str, failures: int) -> float:
    """Seconds to wait after so many failures in a row: none after the first, then 10 s, doubling up to 300 s.

    Args:
        seed: what waits; equal seeds wait equally long, in every pass and under every operator.
        failures: how many failures in a row there were.
    """
    if failures < 2:
        return 0.0
    seconds = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 2, 10))
    fraction = int.from_bytes(hashlib.sha256(f"{seed}/{failures}".encode()).digest()[:4]) / 2**32
    return float(min(LONGEST_SECONDS, seconds * (1 + JITTER * fraction)))


def attempt_begins_at(job_uid: str, status: TrainingJobStatus) -> datetime | None:
    """When the prepared attempt may begin, if attempts in a row have completed no step; None: as soon as it is ready.

    Args:
        job_uid: the job's UID.
        status: the status with the preparation.
    """
    transition = status.transition
    if transition is None or transition.training or transition.cause is None or transition.began_at is None:
        return None
    seconds = wait_seconds(job_uid, status.failures.stepless)
    return transition.began_at + timedelta(seconds=seconds) if seconds else None
