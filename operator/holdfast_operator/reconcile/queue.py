"""The work queue of job keys. A key is queued at most once and processed by one worker at a time.

A key that is added again keeps the earlier of its two times. A key that is added while it is processed is processed
again afterwards, so no wake-up is lost. An urgent key (a report, a notice, a pod's end) overtakes keys that are due for
routine alone. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast_contract.identity import JobKey
from holdfast_contract.reasons import Metric
from holdfast_operator.decide.actions import Count
from holdfast_operator.gateway.kube_errors import KubeError, TooManyRequests, Unavailable
from holdfast_operator.interfaces import Metrics

WORKERS: Final = 8
PASS_SECONDS: Final = 120.0
"""Limit of one pass; every request in it has its own, shorter limit."""
BACKOFF_BASE_SECONDS: Final = 0.5
BACKOFF_CAP_SECONDS: Final = 60.0
MIN_DELAY_SECONDS: Final = 0.02
"""A job that asks for another pass at once must not starve the event loop."""
HEAD_START_SECONDS: Final = 5.0
"""An urgent key counts as if it had waited so long already. Routine that waits for longer comes first: none starves."""

log = logging.getLogger(__name__)


class WorkQueue:
    """Calls ``work`` for the keys that are due, and again after failures, with back-off."""

    def __init__(
        self,
        work: Callable[[str, str], Awaitable[float | None]],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with an empty queue; ``run`` processes it.

        Args:
            work: called with namespace and name; returns seconds until the key is due again, or None.
            metrics: counts passes and their duration.
            clock: monotonic seconds.
        """
        self._work, self._metrics, self._clock = work, metrics, clock
        self._due: dict[JobKey, float] = {}
        self._heap: list[tuple[float, int, JobKey]] = []
        self._order = itertools.count()
        self._running: set[JobKey] = set()
        self._failures: dict[JobKey, int] = {}
        self._changed = asyncio.Event()

    def add(self, namespace: str, name: str, delay_seconds: float = 0.0, *, urgent: bool = False) -> None:
        """Queue a key.

        Args:
            namespace: the job's namespace.
            name: the job's name.
            delay_seconds: the key is due after this time at the latest.
            urgent: the key is due now, and overtakes those that are due for routine.
        """
        key = JobKey(namespace, name)
        when = self._clock() + (-HEAD_START_SECONDS if urgent else delay_seconds)
        if self._due.get(key, float("inf")) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._heap, (when, next(self._order), key))
        self._changed.set()

    async def run(self, workers: int = WORKERS) -> None:
        """Process keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._take()
            try:
                await self._pass(key)
            finally:
                self._running.discard(key)
                if key in self._due:  # added while it was processed
                    heapq.heappush(self._heap, (self._due[key], next(self._order), key))
                    self._changed.set()

    async def _take(self) -> JobKey:
        while True:
            wait = self._seconds_to_next()
            if wait is not None and wait <= 0:
                _, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._running.add(key)
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _seconds_to_next(self) -> float | None:
        """Seconds until the first idle key is due; drops entries that an earlier time has replaced."""
        while self._heap:
            when, _, key = self._heap[0]
            if key not in self._running and self._due.get(key) == when:
                return when - self._clock()
            heapq.heappop(self._heap)
        return None

    async def _pass(self, key: JobKey) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(PASS_SECONDS):
                again = await self._work(*key)
        except Exception as error:  # an error of any kind in one job must not stop the others
            self._failed(key, error)
        else:
            self._failures.pop(key, None)
            self._metrics.count(Count(Metric.RECONCILES, labels={"result": "ok"}))
            if again is not None:
                self.add(*key, max(again, MIN_DELAY_SECONDS))
        self._metrics.count(Count(Metric.RECONCILE_SECONDS, self._clock() - began))

    def _failed(self, key: JobKey, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0 ** min(failures - 1, 10)) * random.uniform(0.8, 1.2)
        if isinstance(error, TooManyRequests):
            delay = max(delay, error.retry_after_seconds)
        known = isinstance(error, KubeError | TimeoutError)
        quiet = isinstance(error, Unavailable) and failures > 3
        log.log(
            logging.DEBUG if quiet else logging.WARNING,
            "the pass failed and is tried again in %.1f s: %s: %s",
            delay,
            type(error).__name__,
            error,
            exc_info=None if known else error,
            extra={"namespace": key[0], "job": key[1], "failures": failures},
        )
        self._metrics.count(Count(Metric.RECONCILES, labels={"result": "error"}))
        self.add(*key, delay)
