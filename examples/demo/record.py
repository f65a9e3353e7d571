"""Everything that the demo observed, on one monotonic clock: marks, spans and the training curve."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LANES: Final = ("you", "operator", "worker 0", "worker 1", "checkpoints")


class Kind(enum.StrEnum):
    """The kind of a mark or span, which sets its colour on the page and on the screen."""

    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    FAULT = "fault"
    STARTUP = "startup"
    COMPILE = "compile"
    TRAIN = "train"


@dataclass(frozen=True)
class Mark:
    """An event at one instant, ``at`` seconds after the demo's job was applied."""

    at: float
    lane: str
    kind: Kind
    text: str


@dataclass
class Span:
    """A period in one lane; ``end`` is None while it lasts."""

    lane: str
    kind: Kind
    text: str
    start: float
    end: float | None = None


@dataclass(frozen=True)
class Point:
    """Training progress, from the job's status."""

    at: float
    step: int
    loss: float | None


@dataclass
class Record:
    """Collects events from several threads; readers get copies."""

    clock: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)
    marks: list[Mark] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def now(self) -> float:
        """Return the seconds since this record began."""
        return self.clock() - self.started

    def mark(self, lane: str, kind: Kind, text: str, *, at: float | None = None) -> float:
        """Record an event. Returns its instant."""
        instant = self.now() if at is None else at
        with self._lock:
            self.marks.append(Mark(instant, lane, kind, text))
        return instant

    def begin(self, lane: str, kind: Kind, text: str) -> None:
        """End the lane's open span and begin this one."""
        instant = self.now()
        with self._lock:
            self._close(lane, instant)
            self.spans.append(Span(lane, kind, text, instant))

    def end(self, lane: str) -> None:
        """End the lane's open span."""
        with self._lock:
            self._close(lane, self.now())

    def point(self, step: int, loss: float | None) -> None:
        """Add a point, if the step has changed."""
        with self._lock:
            if not self.points or self.points[-1].step != step:
                self.points.append(Point(self.now(), step, loss))

    def snapshot(self) -> tuple[list[Mark], list[Span], list[Point]]:
        """Return copies, with the marks in order of time."""
        with self._lock:
            return sorted(self.marks, key=lambda m: m.at), list(self.spans), list(self.points)

    def _close(self, lane: str, instant: float) -> None:
        for span in self.spans:
            if span.lane == lane and span.end is None:
                span.end = instant
