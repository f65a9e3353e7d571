"""Time that passes only when everybody waits for it: loops and clocks whose waits cost nothing and depend on no machine."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Does not wait for time to pass: it moves the clock instead, unless there is something to read or write."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits, and none of them for time to pass")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which an hour passes as soon as every task waits for it. For tasks only, not for threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time: the clock to hand to what runs in it."""
    return asyncio.get_running_loop().time()


class Clock:
    """``time.monotonic`` and ``time.sleep`` of a test with one thread. Sleeping moves the clock at once."""

    def __init__(self) -> None:
        self.now = 100.0
        self._order = itertools.count()
        self._planned: list[tuple[float, int, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every module that asks ``time`` asks this clock, until the test ends."""
        monkeypatch.setattr(time, "monotonic", self)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do this when the clock comes by."""
        heapq.heappush(self._planned, (self.now + seconds, next(self._order), action))

    def sleep(self, seconds: float) -> None:
        """Move the clock, and do on the way what was planned."""
        end = self.now + seconds
        while self._planned and self._planned[0][0] <= end:
            self.now, _, action = heapq.heappop(self._planned)
            action()
        self.now = end
