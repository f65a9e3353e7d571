"""The newest report, handed from the loop to the sync thread. Older ones are never sent: a report is the whole state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast_contract.sync import Report


@dataclass(frozen=True)
class Letter:
    """A report to be sent. ``number`` grows with each; ``urgent_number`` is that of the last change in meaning."""

    report: Report
    number: int
    urgent_number: int
    hold_seconds: float  # how long the operator may keep the answer


class Mailbox:
    """One slot. Every wait has a deadline."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._letter: Letter | None = None
        self._delivered = 0

    def put(self, letter: Letter) -> None:
        """Replace what is to be sent."""
        with self._changed:
            self._letter = letter
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[Letter], bool], seconds: float) -> Letter | None:
        """The newest letter once ``wanted`` says so or the time is over; None if there never was one."""
        with self._changed:
            self._changed.wait_for(lambda: self._letter is not None and wanted(self._letter), max(0.0, seconds))
            return self._letter

    def delivered(self, number: int) -> None:
        """The operator has answered the letter of this number."""
        with self._changed:
            self._delivered = max(self._delivered, number)
            self._changed.notify_all()

    def wait_delivered(self, number: int, seconds: float) -> bool:
        """Whether the operator answered a letter at least as new as ``number`` within so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._delivered >= number, seconds)
