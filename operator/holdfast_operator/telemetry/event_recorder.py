"""The recorder of Kubernetes Events: best effort, bounded, and without any influence on reconciling.

An Event follows the status write that contains its cause, so it is posted once or, if the operator dies in between,
never. The exception are words without a trace in the status (a pod that could not be created): each operator that
starts may say those once. Words that repeat become one Event with a series, as client-go does it.

Order: an Event's name ends with the instant in ``eventTime``, and no two of one recorder have the same. Whoever lists
by name (``kubectl get events``, ``kubectl describe``) or sorts by time (``kubectl events``) sees causes before effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast_contract import keys
from holdfast_operator.decide.actions import Event
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import AlreadyExists, KubeError, NotFound, TooManyRequests, Unavailable
from holdfast_operator.interfaces import Manifest

QUEUE_LIMIT: Final = 1000
SERIES_SECONDS: Final = 360.0
"""After so long without a repetition the same words begin a new Event (client-go: six minutes)."""
REFRESH_SECONDS: Final = 60.0
"""How often the count of a series that goes on is written. Its first repetition is written at once."""
FINAL_FLUSH_SECONDS: Final = 2.0
"""How long the recorder may go on writing what was said before it was stopped."""
TRIES: Final = 3
RETRY_SECONDS: Final = 1.0
COMPONENT: Final = "holdfast-operator"
ACTION: Final = "Reconcile"
MAX_NOTE_BYTES: Final = 1024
"""The API server refuses an Event with more."""
MAX_NAME: Final = 230
"""How much of a job's name goes into an Event's: 253 is the limit, a dot and 16 digits follow."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger(__name__)


@dataclass
class _RecordedEvent:
    """One Event and how often its words were recorded. ``written``: the count that the API server has; 0: none yet."""

    manifest: Manifest
    emitted_at: float  # on the recorder's clock
    last_observed: str
    count: int = 1
    written: int = 0
    queued: bool = False

    @property
    def series(self) -> dict[str, Any]:
        """As the API has it; only for words that were repeated."""
        return {"count": self.count, "lastObservedTime": self.last_observed}


class EventRecorder:
    """Takes events at once and writes them in the background; the oldest are dropped when there are too many."""

    def __init__(
        self,
        kube: Kube,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._kube, self._instance, self._clock = kube, instance, clock
        self._refresh_seconds, self._refreshed_at = refresh_seconds, clock()
        self._queue: deque[_RecordedEvent] = deque()
        self._recent: OrderedDict[tuple[str, str, str], _RecordedEvent] = OrderedDict()
        self._microseconds = 0
        self._filled = asyncio.Event()

    def emit(self, job: Manifest, event: Event) -> None:
        """Queue one event; the same words about the same object are counted, not said again."""
        meta, now = job["metadata"], self._clock()
        instant = self._instant()
        words = (meta["uid"], event.reason.value, event.message)
        self._forget(now)
        recorded = self._recent.get(words)
        if recorded is not None:
            recorded.count, recorded.emitted_at, recorded.last_observed = recorded.count + 1, now, _text(instant)
            self._recent.move_to_end(words)
            if recorded.count == 2:  # more often than that waits for the next refresh
                self._enqueue(recorded)
            return
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        place = {"namespace": meta["namespace"], "job": meta["name"]}
        log.log(level, "%s: %s", event.reason.value, event.message, extra=place)
        recorded = self._recent[words] = _RecordedEvent(self._manifest(job, event, instant), now, _text(instant))
        self._enqueue(recorded)

    async def run(self) -> None:
        """Write until cancelled, and then what was said before that."""
        try:
            while True:
                await self.flush()
                self._filled.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._refresh_seconds):
                        await self._filled.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINAL_FLUSH_SECONDS):
                    self._refresh()
                    await self.flush()
            raise

    async def flush(self) -> None:
        """Write what is queued, in the order in which it was recorded, and the counts that are due."""
        if self._clock() - self._refreshed_at >= self._refresh_seconds:
            self._refresh()
        while self._queue:
            recorded = self._queue.popleft()
            try:
                await self._write(recorded)
            except asyncio.CancelledError:
                self._queue.appendleft(recorded)  # its name tells whether it was written all the same
                raise
            recorded.queued = False

    def _refresh(self) -> None:
        """Queue every series of which the API server has an older count."""
        self._refreshed_at = self._clock()
        for recorded in self._recent.values():
            if recorded.count != recorded.written:
                self._enqueue(recorded)

    def _enqueue(self, recorded: _RecordedEvent) -> None:
        if recorded.queued:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.popleft().queued = False
        recorded.queued = True
        self._queue.append(recorded)
        self._filled.set()

    def _forget(self, now: float) -> None:
        """Drop words that have not been repeated for long. The oldest go first when there are too many."""
        while self._recent:
            oldest = next(iter(self._recent.values()))
            if len(self._recent) <= QUEUE_LIMIT and now - oldest.emitted_at < SERIES_SECONDS:
                return
            self._recent.popitem(last=False)
            if oldest.count != oldest.written:
                self._enqueue(oldest)

    async def _write(self, recorded: _RecordedEvent) -> None:
        for attempt in range(1, TRIES + 1):
            count = recorded.count
            try:
                await self._post(recorded)
            except (TooManyRequests, Unavailable) as error:
                log.debug("event not written (try %d): %s", attempt, error)
                await asyncio.sleep(RETRY_SECONDS * attempt)
            except KubeError as error:
                log.debug("event dropped: %s", error)
                recorded.written = count  # refused once is refused again: do not come back for it
                return
            else:
                recorded.written = count
                return

    async def _post(self, recorded: _RecordedEvent) -> None:
        namespace, name = recorded.manifest["metadata"]["namespace"], recorded.manifest["metadata"]["name"]
        if recorded.written:
            try:
                await self._kube.patch_event_series(namespace, name, recorded.series)
            except NotFound:
                recorded.written = 0  # it was too old to be kept
            else:
                return
        body = recorded.manifest | ({"series": recorded.series} if recorded.count > 1 else {})
        with contextlib.suppress(AlreadyExists):  # an earlier try of ours whose answer was lost
            await self._kube.create_event(namespace, body)

    def _instant(self) -> datetime:
        """The wall clock in whole microseconds, but always later than the last time."""
        self._microseconds = max(self._microseconds + 1, time.time_ns() // 1000)
        return _EPOCH + timedelta(microseconds=self._microseconds)

    def _manifest(self, job: Manifest, event: Event, instant: datetime) -> Manifest:
        meta = job["metadata"]
        name = f"{meta['name'][:MAX_NAME].rstrip('-.')}.{self._microseconds:016x}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "eventTime": _text(instant),
            "regarding": {
                "apiVersion": keys.API_VERSION,
                "kind": keys.KIND,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "reason": event.reason.value,
            "note": event.message.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore"),
            "type": event.type,
            "action": ACTION,
            "reportingController": COMPONENT,
            "reportingInstance": self._instance[:128],
        }


def _text(instant: datetime) -> str:
    """A MicroTime of the API."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
