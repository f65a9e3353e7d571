"""Where every second since the agent's start went. The buckets add up exactly to the time since then."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_contract.reasons import Bucket


class GoodputLedger:
    """Seconds by bucket: idle without a trainer, the trainer's own account while one runs.

    The trainer's account is cumulative over its process, and each message arrives late. All time before the first
    message counts as startup. All time since the last message counts towards the bucket that grew most between the last
    two.

    Every ``now`` is an instant in seconds on one monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._closed: dict[str, float] = {}
        self._trainer: _TrainerAccount | None = None

    def begin_trainer(self, now: float) -> None:
        """A trainer was spawned."""
        self.end_trainer(now)
        _add(self._closed, {Bucket.IDLE.value: now - self._since})
        self._since, self._trainer = now, _TrainerAccount(now)

    def record(self, buckets: Mapping[str, float], now: float) -> None:
        """Take in the trainer's account: cumulative seconds by bucket."""
        if self._trainer is not None and buckets:
            self._trainer.record(buckets, now)

    def end_trainer(self, now: float) -> None:
        """The trainer ended."""
        if self._trainer is not None:
            _add(self._closed, self._trainer.at(now))
            self._since, self._trainer = now, None

    def at(self, now: float) -> dict[str, float]:
        """Seconds by bucket from the agent's start to ``now``."""
        total = dict(self._closed)
        _add(total, {Bucket.IDLE.value: now - self._since} if self._trainer is None else self._trainer.at(now))
        return total


class _TrainerAccount:
    """One trainer's life: what it reported, the time before it could report, and the time since its last report."""

    def __init__(self, spawned: float) -> None:
        self._spawned = spawned
        self._reported: dict[str, float] = {}
        self._before: float | None = None
        self._current = Bucket.STARTUP.value

    def record(self, buckets: Mapping[str, float], now: float) -> None:
        life = now - self._spawned
        reported = {name: max(0.0, seconds) for name, seconds in buckets.items()}
        claimed = sum(reported.values())
        if claimed > life:  # it cannot have lived longer than its process: keep the shares, not the sum
            reported = {name: seconds * life / claimed for name, seconds in reported.items()}
            claimed = life
        # What it does not account for is the time before its clock began plus the delay of the message. The delay
        # varies, so the smallest gap so far is nearest to the truth.
        gap = life - claimed
        self._before = gap if self._before is None else min(self._before, gap)
        growth = {name: seconds - self._reported.get(name, 0.0) for name, seconds in reported.items()}
        if growth and max(growth.values()) > 0:
            self._current = max(growth, key=lambda name: growth[name])
        self._reported = reported

    def at(self, now: float) -> dict[str, float]:
        before = self._before or 0.0
        total = dict(self._reported)
        since = (now - self._spawned) - before - sum(self._reported.values())
        _add(total, {Bucket.STARTUP.value: before})
        _add(total, {self._current: since})
        return total


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds
