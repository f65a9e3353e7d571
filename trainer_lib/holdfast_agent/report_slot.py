"""The newest report, handed from the loop to the sync thread. Each is the whole state, so older ones are never sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast_contract.sync import Report


@dataclass(frozen=True)
class PendingReport:
    """A report to be sent. ``number`` grows; ``urgent_number`` is that of the last report whose meaning changed."""

    report: Report
    number: int
    urgent_number: int
    hold_seconds: float  # how long the operator may hold the request before it answers


class ReportSlot:
    """Holds one report. Every wait has a deadline."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: PendingReport | None = None
        self._delivered = 0

    def put(self, pending: PendingReport) -> None:
        """Replace the report that is to be sent."""
        with self._changed:
            self._pending = pending
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[PendingReport], bool], seconds: float) -> PendingReport | None:
        """Wait until the newest report meets ``condition``, at most ``seconds``.

        Returns:
            The newest report, whether or not it meets the condition; None if there never was one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None and condition(self._pending), max(0.0, seconds))
            return self._pending

    def mark_delivered(self, number: int) -> None:
        """The operator has answered the report of this number."""
        with self._changed:
            self._delivered = max(self._delivered, number)
            self._changed.notify_all()

    def wait_delivered(self, number: int, seconds: float) -> bool:
        """Whether the operator answers a report at least as new as ``number`` within ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._delivered >= number, seconds)
