"""How a job spends its time, in buckets of whole milliseconds, so that they add up exactly.

Worker 0's agent reports how it spent the time since it started. Time of which it knows nothing (no pod ran, the job was
suspended) goes to the bucket of the job's state. Time is accounted up to an instant, and never twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from holdfast_contract.api import AccountedPod, TrainingJobStatus
from holdfast_contract.reasons import Bucket, Condition
from holdfast_operator.decide import conditions
from holdfast_operator.decide.members import JobView

NAMES: Final = frozenset(b.value for b in Bucket)
LONGEST_SECONDS: Final = 1e9
"""A reported bucket is cut to this: thirty years."""
SECOND: Final = timedelta(seconds=1)
PROMPT: Final = timedelta(seconds=0.5)
"""A first pass no later than this after the second of creation counts as prompt: a watch event caused it."""
STALE_SECONDS: Final = 60.0
"""How long the account waits for a silent agent of worker 0 before the job's state decides."""


def begun(view: JobView) -> datetime:
    """When the job was created, which is where its account begins.

    The API server gives the second only. A prompt first pass follows the creation by a watch's delay, and gives the
    fraction. After a late one (the operator was away), the middle of the second is wrong by half a second at most.
    """
    second, first_pass = view.job.created_at, view.status.start_time or view.now
    if first_pass < second + SECOND + PROMPT:
        return min(first_pass, second + SECOND)
    return second + SECOND / 2


def milliseconds(status: TrainingJobStatus) -> dict[str, int]:
    """The buckets in whole milliseconds."""
    return {name: round(seconds * 1000) for name, seconds in status.goodput.buckets.items()}


def account(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with every millisecond up to now, or up to worker 0's last report, in a bucket.

    The *stored* status decides about the bucket: the job was in that state since the last account.
    """
    stored = view.job.status
    if conditions.finished(stored):
        return status
    since = stored.goodput.accounted_until or begun(view.under(status))
    ending = conditions.finished(status) or conditions.holds(status, Condition.SUSPENDED)
    until = view.now if ending else _until(view, stored, since)
    delta = round((until - since) / timedelta(milliseconds=1))
    if delta <= 0:
        return status
    spent, counted = _spent(view, stored)
    shares = _fit(spent, delta)
    shares[_remainder_bucket(stored)] = shares.get(_remainder_bucket(stored), 0) + delta - sum(shares.values())
    buckets = milliseconds(status)
    for name, share in shares.items():
        buckets[name] = buckets.get(name, 0) + share
    account = status.goodput.model_copy(
        update={
            "buckets": {name: value / 1000 for name, value in sorted(buckets.items()) if value},
            "accounted_until": since + timedelta(milliseconds=delta),
            "counted": counted or status.goodput.counted,
        }
    )
    return status.model_copy(update={"goodput": account})


def _until(view: JobView, stored: TrainingJobStatus, since: datetime) -> datetime:
    """The instant up to which time can be accounted: that of worker 0's last report while an attempt trains."""
    if not stored.active_attempt or stored.transition is not None or conditions.holds(stored, Condition.SUSPENDED):
        return view.now
    last = view.last_report(view.workers[0].pod)
    if last is not None:
        return max(since, view.now - timedelta(seconds=last.age_seconds))
    silent = (view.now - since).total_seconds()
    return view.now if silent > STALE_SECONDS else since


def _spent(view: JobView, stored: TrainingJobStatus) -> tuple[dict[str, int], AccountedPod | None]:
    """What worker 0's agent has spent since the last account, in milliseconds per bucket."""
    pod = view.under(stored).workers[0].pod
    last = view.last_report(pod)
    if pod is None or last is None:
        return {}, None
    buckets = last.report.buckets.items()
    reported = {n: max(0, round(min(s, LONGEST_SECONDS) * 1000)) for n, s in buckets if n in NAMES}
    before = stored.goodput.counted
    known = before.milliseconds if before is not None and before.uid == pod.uid else {}
    spent = {name: max(0, value - known.get(name, 0)) for name, value in reported.items()}
    idle = spent.pop(Bucket.IDLE.value, 0)
    if idle:
        name = _remainder_bucket(stored) if stored.active_attempt else Bucket.IDLE.value
        spent[name] = spent.get(name, 0) + idle
    return spent, AccountedPod(uid=pod.uid, milliseconds=reported)


def _remainder_bucket(stored: TrainingJobStatus) -> str:
    """The bucket of time that worker 0 does not report, or in which it ran no trainer."""
    if conditions.holds(stored, Condition.SUSPENDED):
        return Bucket.SUSPENDED.value
    if not stored.active_attempt:
        return Bucket.QUEUED.value
    return Bucket.RECOVERY.value


def _fit(spent: Mapping[str, int], limit: int) -> dict[str, int]:
    """The shares, scaled down if they exceed the time that has passed: two clocks never agree exactly."""
    total = sum(spent.values())
    if total <= limit:
        return dict(spent)
    return {name: value * limit // total for name, value in spent.items()}


def charge_rework(view: JobView, steps: int) -> TrainingJobStatus:
    """The status after this many completed steps were lost: their time moves from productive to rework."""
    status = view.status
    if steps <= 0:
        return status
    seconds = status.progress.step_seconds if status.progress is not None else None
    buckets = milliseconds(status)
    productive = buckets.get(Bucket.PRODUCTIVE.value, 0)
    moved = min(productive, round(steps * (seconds or 0.0) * 1000))
    if moved:
        buckets[Bucket.PRODUCTIVE.value] = productive - moved
        buckets[Bucket.REWORK.value] = buckets.get(Bucket.REWORK.value, 0) + moved
    account = status.goodput.model_copy(
        update={
            "buckets": {name: value / 1000 for name, value in sorted(buckets.items()) if value},
            "steps_lost": status.goodput.steps_lost + steps,
        }
    )
    return status.model_copy(update={"goodput": account})
