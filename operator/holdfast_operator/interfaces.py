"""What the reconciler needs besides the API server and the board, as interfaces: clocks, Events and metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic
from typing import Any, Protocol

from holdfast_operator.decide.actions import Count, Event

Manifest = dict[str, Any]
"""An object of the API server as JSON."""


class Events(Protocol):
    """The recorder of Kubernetes Events. Never blocks, never raises."""

    def emit(self, job: Manifest, event: Event) -> None:
        """Record one Event about the job."""


class Metrics(Protocol):
    """The counters. Never blocks, never raises."""

    def count(self, count: Count) -> None:
        """Add to a counter, or observe a value."""


class Clock(Protocol):
    """Two clocks: wall time for what people read and what outlives this process, monotonic time for ages."""

    def now(self) -> datetime:
        """Wall time, UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never goes back."""
        return monotonic()
