"""What a caller may take: requests per second, connections, and time to say what it wants."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MAX_CONNECTIONS: Final = 16_384
HEADER_SECONDS: Final = 15.0
"""From the start of a connection to its first whole request header (the TLS handshake has its own limit)."""
IDLE_SECONDS: Final = 75.0
"""Between two requests of one connection, the header of the second included."""
BUCKETS: Final = 20_000


class RateLimit:
    """A token bucket per key. Bounded: the key that has been quiet for longest is forgotten first."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic, limit: int = BUCKETS
    ) -> None:
        self._rate, self._burst, self._clock, self._limit = per_second, burst, clock, limit
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """0 if the key may go on, else the seconds after which it may."""
        now = self._clock()
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._rate
        self._levels[key] = (level - 1.0 if wait == 0.0 else level, now)
        while len(self._levels) > self._limit:
            self._levels.popitem(last=False)
        return wait


class Guard:
    """Makes guarded protocols and knows which of them are open."""

    def __init__(self, make: Callable[[], asyncio.Protocol], max_connections: int = MAX_CONNECTIONS) -> None:
        self._make, self._max = make, max_connections
        self.header_seconds, self.idle_seconds = HEADER_SECONDS, IDLE_SECONDS
        self.open: dict[asyncio.BaseTransport, GuardedProtocol] = {}

    def __call__(self) -> GuardedProtocol:
        """A protocol for one new connection."""
        return GuardedProtocol(self, self._make())

    @property
    def full(self) -> bool:
        """Whether one more connection is one too many."""
        return len(self.open) >= self._max

    def busy(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request header has come on this connection: its clock stops."""
        if transport is not None and (protocol := self.open.get(transport)) is not None:
            protocol.expect(None)

    def idle(self, transport: asyncio.BaseTransport | None) -> None:
        """The answer is on its way: the clock runs for the next request."""
        if transport is not None and (protocol := self.open.get(transport)) is not None:
            protocol.expect(self.idle_seconds)


class GuardedProtocol(asyncio.Protocol):
    """Passes everything on to the inner protocol, and ends connections that do not come to the point."""

    def __init__(self, guard: Guard, inner: asyncio.Protocol) -> None:
        self._guard, self._inner = guard, inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._accepted = False

    def expect(self, seconds: float | None) -> None:
        """Abort the connection in so many seconds unless told otherwise; None: never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"transport: found {type(transport).__name__}, allowed: a stream transport")
        if self._guard.full:
            transport.abort()
            return
        self._accepted, self._transport = True, transport
        self._guard.open[transport] = self
        self.expect(self._guard.header_seconds)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.expect(None)
        if self._accepted and self._transport is not None:
            self._guard.open.pop(self._transport, None)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        if self._accepted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on."""
        return self._inner.eof_received() if self._accepted else None

    def pause_writing(self) -> None:
        """Pass on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._inner.resume_writing()
