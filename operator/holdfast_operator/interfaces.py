"""What the reconciler needs besides the API server and the board, as interfaces: two clocks and two outlets."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic
from typing import Any, Protocol

from holdfast_operator.decide.actions import Count, Event

Manifest = dict[str, Any]
"""An object of the API server as JSON."""


class Events(Protocol):
    """The recorder of Kubernetes Events. Never blocks, never raises."""

    def emit(self, job: Manifest, event: Event) -> None: ...


class Metrics(Protocol):
    """The counters. Never blocks, never raises."""

    def count(self, count: Count) -> None: ...


class Clock(Protocol):
    """Two clocks: the wall for what people read and what outlives this process, the monotonic for ages."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some instant; never goes back."""
        return monotonic()
