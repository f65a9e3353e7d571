"""Where every second of this process's life went: one bucket at a time, from the start of the process.

Because exactly one bucket is open at any instant, the buckets add up to the process's age by construction.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast_contract.reasons import Bucket


class GoodputAccountant:
    """Cumulative seconds per bucket. Starts in STARTUP with the age that the process already has. Thread-safe.

    The *phase* is what the process is about; a block of code may be *within* another bucket for a while.
    """

    def __init__(self, age_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = Bucket.STARTUP
        self._within: list[Bucket] = []
        self._born = self._since = clock() - max(0.0, age_seconds)
        self._closed: dict[Bucket, float] = {}

    @property
    def phase(self) -> Bucket:
        """What the process is about."""
        return self._phase

    @property
    def open(self) -> Bucket:
        """The bucket that seconds go to now."""
        return self._within[-1] if self._within else self._phase

    @property
    def age_seconds(self) -> float:
        """The age of the process."""
        return self._clock() - self._born

    def enter_phase(self, phase: Bucket) -> None:
        """From now on seconds go to ``phase``, except within blocks of another bucket."""
        with self._lock:
            self._settle()
            self._phase = phase

    @contextmanager
    def within(self, bucket: Bucket) -> Iterator[None]:
        """Seconds of the block go to ``bucket``. For one thread, the main one."""
        with self._lock:
            self._settle()
            self._within.append(bucket)
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                self._within.pop()

    def seconds(self) -> dict[str, float]:
        """By bucket so far; their sum is the age of the process."""
        with self._lock:
            self._settle()
            return {bucket.value: seconds for bucket, seconds in self._closed.items()}

    def _settle(self) -> None:
        now = self._clock()
        self._closed[self.open] = self._closed.get(self.open, 0.0) + now - self._since
        self._since = now


def process_age_seconds() -> float:
    """How long this process has existed, interpreter start and imports included; 0 where the system does not provide it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): ticks after boot
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
