"""Where every second since the agent's start went. The buckets add up to the agent's life exactly."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_contract.reasons import Bucket


class Ledger:
    """Seconds by bucket: idle without a trainer, the trainer's own account while there is one.

    The trainer's account is cumulative over its process and late by what it takes to arrive. Before its first word
    all is startup; since its last word, all goes to the bucket that grew most between the last two.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._closed: dict[str, float] = {}
        self._trainer: _Account | None = None

    def begin_trainer(self, now: float) -> None:
        """A trainer was spawned."""
        self.end_trainer(now)
        _add(self._closed, {Bucket.IDLE.value: now - self._since})
        self._since, self._trainer = now, _Account(now)

    def heard(self, buckets: Mapping[str, float], now: float) -> None:
        """The trainer gave its account."""
        if self._trainer is not None and buckets:
            self._trainer.heard(buckets, now)

    def end_trainer(self, now: float) -> None:
        """The trainer ended."""
        if self._trainer is not None:
            _add(self._closed, self._trainer.at(now))
            self._since, self._trainer = now, None

    def at(self, now: float) -> dict[str, float]:
        """Seconds by bucket so far."""
        total = dict(self._closed)
        _add(total, {Bucket.IDLE.value: now - self._since} if self._trainer is None else self._trainer.at(now))
        return total


class _Account:
    """One trainer's life: its own words, the time before it could speak, and the time since it last spoke."""

    def __init__(self, spawned: float) -> None:
        self._spawned = spawned
        self._heard_at = spawned
        self._said: dict[str, float] = {}
        self._before: float | None = None
        self._current = Bucket.STARTUP.value

    def heard(self, buckets: Mapping[str, float], now: float) -> None:
        life = now - self._spawned
        said = {name: max(0.0, seconds) for name, seconds in buckets.items()}
        claimed = sum(said.values())
        if claimed > life:  # it cannot have lived longer than its process: keep the shares, not the sum
            said = {name: seconds * life / claimed for name, seconds in said.items()}
            claimed = life
        # What it does not account for is the time before its clock began, seen through the delay of a message:
        # the smallest gap so far is nearest to the truth.
        gap = life - claimed
        self._before = gap if self._before is None else min(self._before, gap)
        growth = {name: seconds - self._said.get(name, 0.0) for name, seconds in said.items()}
        if growth and max(growth.values()) > 0:
            self._current = max(growth, key=lambda name: growth[name])
        self._said, self._heard_at = said, now

    def at(self, now: float) -> dict[str, float]:
        before = self._before or 0.0
        total = dict(self._said)
        since = (now - self._spawned) - before - sum(self._said.values())
        _add(total, {Bucket.STARTUP.value: before})
        _add(total, {self._current: since})
        return total


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds
