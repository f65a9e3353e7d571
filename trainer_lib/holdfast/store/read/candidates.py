"""The candidates of a restore in the order to try them, and the checkpoints refused without being read. Read only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.store.format import fs
from holdfast.store.read import poison
from holdfast.store.store_settings import UNPINNED, StoreSettings, Unpinned
from holdfast_contract.manifest import CheckpointRef, Rejection, is_healthy
from holdfast_contract.runfolder import Found, RunFolder

Metric = tuple[str, Literal["min", "max"]]
Pin = CheckpointRef | Unpinned
_MISSING: Final = "the pinned checkpoint does not exist: its manifest is missing"


@dataclass(frozen=True)
class CheckpointChoice:
    """The newest by default; otherwise one ``step`` and no other, or the ``best`` by a metric, best first."""

    step: int | None = None
    best: Metric | None = None

    def __post_init__(self) -> None:
        if self.step is not None and self.best is not None:
            raise ValueError("step, best: found both, allowed: one of them, or neither for the newest")
        if self.best is not None and self.best[1] not in {"min", "max"}:
            raise ValueError(f"best: found mode {self.best[1]!r}, allowed: 'min' | 'max'")


NEWEST: Final = CheckpointChoice()


@dataclass(frozen=True)
class Candidates:
    """The checkpoints in a run's folder, as candidates for a restore in ``attempt``."""

    folder: RunFolder
    attempt: int
    settings: StoreSettings

    def in_order(self, pin: Pin, choice: CheckpointChoice) -> Iterator[Found | Rejection]:
        """Candidates and refusals, in the order to try them. Raises OSError."""
        entries: Iterable[Found | Rejection] = self._at_or_below(pin)
        if choice.step is not None:
            yield _exactly(choice.step, entries)
            return
        if choice.best is not None:
            entries = _best_first(list(entries), choice.best)
        yield from self._without_poison(entries)

    def _at_or_below(self, pin: Pin) -> Iterator[Found | Rejection]:
        pin_seen = pin is UNPINNED
        for entry in self._walk():
            ref = _ref_of(entry)
            if isinstance(pin, CheckpointRef):
                if ref > pin:
                    continue
                if not pin_seen and ref < pin:
                    yield Rejection(pin.attempt, pin.step, _MISSING)
                pin_seen = True
                if ref == pin and isinstance(entry, Found) and pin.digest not in {"", entry.ref.digest}:
                    reason = f"the manifest is not the pinned one: expected {pin.digest}, found {entry.ref.digest}"
                    yield Rejection(pin.attempt, pin.step, reason)
                    continue
            yield entry
        if isinstance(pin, CheckpointRef) and not pin_seen:
            yield Rejection(pin.attempt, pin.step, _MISSING)

    def _walk(self) -> Iterator[Found | Rejection]:
        walk = self.folder.walk()
        last: CheckpointRef | None = None

        def following() -> Found | Rejection | None:
            nonlocal walk
            try:
                return next(walk, None)
            except OSError:  # a generator that raised has ended: a new one continues where it stopped
                walk = (entry for entry in self.folder.walk() if last is None or _ref_of(entry) < last)
                raise

        while True:
            entry = fs.retry_transient(following, seconds=self.settings.transient_seconds)
            if entry is None:
                return
            last = _ref_of(entry)
            yield entry

    def _without_poison(self, entries: Iterable[Found | Rejection]) -> Iterator[Found | Rejection]:
        limit = self.settings.poison_after
        if not limit:
            yield from entries
            return
        without_checkpoint = poison.attempts_without_checkpoint(self.folder, before=self.attempt)
        for entry in entries:
            attempts = without_checkpoint.get(entry.ref, ()) if isinstance(entry, Found) else ()
            if len(attempts) < limit or isinstance(entry, Rejection):
                yield entry
                continue
            history = f"attempts {', '.join(map(str, attempts))} continued from it and ended without a checkpoint of their own"
            yield Rejection(entry.ref.attempt, entry.ref.step, f"poison: {history}; allowed: fewer than {limit}")


def _ref_of(entry: Found | Rejection) -> CheckpointRef:
    return entry.ref if isinstance(entry, Found) else CheckpointRef(entry.attempt, entry.step)


def by_metric(entries: Sequence[Found], metric: Metric) -> list[Found]:
    """The entries with a finite value of the metric that are not marked unhealthy, best first; of equals the newer first."""
    name, mode = metric
    sign = 1.0 if mode == "min" else -1.0
    healthy = [e for e in entries if is_healthy(e.manifest.metrics)]
    rated = [e for e in healthy if math.isfinite(e.manifest.metrics.get(name, math.nan))]
    return sorted(sorted(rated, key=lambda e: e.ref, reverse=True), key=lambda e: sign * e.manifest.metrics[name])


def _exactly(step: int, entries: Iterable[Found | Rejection]) -> Found | Rejection:
    """The step in the newest attempt that has it; if damaged, no older attempt's step replaces it."""
    for entry in entries:
        if step == (entry.ref.step if isinstance(entry, Found) else entry.step):
            return entry
    return Rejection(0, step, "no checkpoint of this step exists")


def _best_first(entries: list[Found | Rejection], metric: Metric) -> Iterator[Found | Rejection]:
    found = [entry for entry in entries if isinstance(entry, Found)]
    yield from (entry for entry in entries if isinstance(entry, Rejection))
    rated = by_metric(found, metric)
    yield from rated
    for entry in found:
        if entry not in rated:
            yield Rejection(entry.ref.attempt, entry.ref.step, _unrated(entry, metric[0]))


def _unrated(entry: Found, name: str) -> str:
    if not is_healthy(entry.manifest.metrics):
        return "the program marked it unhealthy when it saved it"
    return f"no finite value of the metric {name!r}"
