"""Where the seconds of a job's life go. Whole milliseconds, so that the buckets add up exactly.

Worker 0's agent says how it spent the time since it started; what it cannot know (nobody ran, the job was suspended) is
put where the job's state says. Time is accounted up to an instant and never twice.
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
"""More than thirty years in one bucket is not believed."""
SECOND: Final = timedelta(seconds=1)
PROMPT: Final = timedelta(seconds=0.5)
"""A first look no later than this after the second of creation is taken for one that a watch caused."""
STALE_SECONDS: Final = 60.0
"""How long a silent agent of worker 0 may hold up the account before the job's state decides."""


def begun(view: JobView) -> datetime:
    """When the job was created, from which on its time is accounted.

    The API server says the second; the operator's first look comes later by what a watch takes, and says the rest. If it
    came much later, the operator was away, and the middle of that second is off by half of it at most.
    """
    cut, first_look = view.job.created_at, view.status.start_time or view.now
    if first_look < cut + SECOND + PROMPT:
        return min(first_look, cut + SECOND)
    return cut + SECOND / 2


def milliseconds(status: TrainingJobStatus) -> dict[str, int]:
    """The buckets in whole milliseconds."""
    return {name: round(seconds * 1000) for name, seconds in status.goodput.buckets.items()}


def account(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with every millisecond up to now (or up to worker 0's last word) in a bucket.

    The time is attributed by the *stored* state: that is the state which the job was in since the last account.
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
    """Up to when the account can be made: worker 0's own is as old as its last report."""
    if not stored.active_attempt or stored.transition is not None or conditions.holds(stored, Condition.SUSPENDED):
        return view.now
    last = view.last_report(view.workers[0].pod)
    if last is not None:
        return max(since, view.now - timedelta(seconds=last.age_seconds))
    silent = (view.now - since).total_seconds()
    return view.now if silent > STALE_SECONDS else since


def _spent(view: JobView, stored: TrainingJobStatus) -> tuple[dict[str, int], AccountedPod | None]:
    """What worker 0's agent has spent since it was last counted, in milliseconds per bucket."""
    pod = view.under(stored).workers[0].pod
    last = view.last_report(pod)
    if pod is None or last is None:
        return {}, None
    told = last.report.buckets.items()
    said = {n: max(0, round(min(s, LONGEST_SECONDS) * 1000)) for n, s in told if n in NAMES}
    before = stored.goodput.counted
    known = before.milliseconds if before is not None and before.uid == pod.uid else {}
    spent = {name: max(0, value - known.get(name, 0)) for name, value in said.items()}
    idle = spent.pop(Bucket.IDLE.value, 0)
    if idle:
        name = _remainder_bucket(stored) if stored.active_attempt else Bucket.IDLE.value
        spent[name] = spent.get(name, 0) + idle
    return spent, AccountedPod(uid=pod.uid, milliseconds=said)


def _remainder_bucket(stored: TrainingJobStatus) -> str:
    """Where time goes that worker 0 says nothing about, or in which it ran no trainer."""
    if conditions.holds(stored, Condition.SUSPENDED):
        return Bucket.SUSPENDED.value
    if not stored.active_attempt:
        return Bucket.QUEUED.value
    return Bucket.RECOVERY.value


def _fit(spent: Mapping[str, int], limit: int) -> dict[str, int]:
    """The shares, shrunk in proportion where they exceed the time that has passed (two clocks never quite agree)."""
    total = sum(spent.values())
    if total <= limit:
        return dict(spent)
    return {name: value * limit // total for name, value in spent.items()}


def charge_rework(view: JobView, steps: int) -> TrainingJobStatus:
    """The status once so many completed steps decision out to be lost: their time was not productive after all."""
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
