"""Limits for callers: requests per second, open connections, and the time until a request is complete.

aiohttp has neither a limit of connections nor a time limit for the request header, hence ``ConnectionGuard``.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MAX_CONNECTIONS: Final = 16_384
HEADER_SECONDS: Final = 15.0
"""From the start of a connection to its first complete request header. The TLS handshake has its own limit."""
IDLE_SECONDS: Final = 75.0
"""From a response to the next complete request header on the same connection."""
BUCKETS: Final = 20_000


class RateLimit:
    """A token bucket per key. The number of keys is bounded: the longest unused key is dropped first."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic, limit: int = BUCKETS
    ) -> None:
        """Start with full buckets.

        Args:
            per_second: requests per second that a key may make in the long run.
            burst: requests that a key may make at once.
            clock: monotonic seconds.
            limit: how many keys are kept.
        """
        self._rate, self._burst, self._clock, self._limit = per_second, burst, clock, limit
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """0 if the request is allowed (it is then counted), else the seconds until one is allowed."""
        now = self._clock()
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._rate
        self._levels[key] = (level - 1.0 if wait == 0.0 else level, now)
        while len(self._levels) > self._limit:
            self._levels.popitem(last=False)
        return wait


class ConnectionGuard:
    """Makes one ``GuardedProtocol`` per connection and keeps track of the open ones."""

    def __init__(self, make: Callable[[], asyncio.Protocol], max_connections: int = MAX_CONNECTIONS) -> None:
        self._make, self._max = make, max_connections
        self.header_seconds, self.idle_seconds = HEADER_SECONDS, IDLE_SECONDS
        self.open: dict[asyncio.BaseTransport, GuardedProtocol] = {}

    def __call__(self) -> GuardedProtocol:
        """A protocol for one new connection."""
        return GuardedProtocol(self, self._make())

    @property
    def full(self) -> bool:
        """Whether no further connection is accepted."""
        return len(self.open) >= self._max

    def busy(self, transport: asyncio.BaseTransport | None) -> None:
        """A complete request header has arrived on this connection: stop its timer."""
        if transport is not None and (protocol := self.open.get(transport)) is not None:
            protocol.expect(None)

    def idle(self, transport: asyncio.BaseTransport | None) -> None:
        """The response has been sent: start the timer for the next request."""
        if transport is not None and (protocol := self.open.get(transport)) is not None:
            protocol.expect(self.idle_seconds)


class GuardedProtocol(asyncio.Protocol):
    """Passes everything on to the inner protocol, and aborts connections that send no request in time."""

    def __init__(self, guard: ConnectionGuard, inner: asyncio.Protocol) -> None:
        self._guard, self._inner = guard, inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._accepted = False

    def expect(self, seconds: float | None) -> None:
        """Abort the connection after this time; replaces an earlier timer. None: never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it if too many are open."""
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
