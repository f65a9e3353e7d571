"""The recorder of Kubernetes Events: best effort, bounded, and without influence on reconciling.

An Event follows the status write that contains its cause. So it is posted once, or never if the operator dies in
between. The exceptions are messages without a trace in the status (a pod that could not be created): each operator that
starts may post those once. A message that repeats becomes one Event with a series, as in client-go. The ``kubernetes``
client for Python has no recorder.

Order: an Event's name ends with the instant in ``eventTime``, and no two Events of one recorder share an instant. Lists
by name (``kubectl get events``, ``kubectl describe``) and by time (``kubectl events``) show causes before effects.
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
"""After this time without a repetition, the same message starts a new Event (client-go: six minutes)."""
REFRESH_SECONDS: Final = 60.0
"""How often the count of a continuing series is written. The first repetition is written at once."""
FINAL_FLUSH_SECONDS: Final = 2.0
"""How long a stopped recorder may take to write what was emitted before."""
TRIES: Final = 3
RETRY_SECONDS: Final = 1.0
COMPONENT: Final = "holdfast-operator"
ACTION: Final = "Reconcile"
MAX_NOTE_BYTES: Final = 1024
"""The API server refuses an Event with more."""
MAX_NAME: Final = 230
"""How many characters of a job's name an Event's name takes: the limit is 253, and a dot and 16 digits follow."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger(__name__)


@dataclass
class _RecordedEvent:
    """One Event and how often it was emitted. ``written``: the count that the API server has; 0: none yet."""

    manifest: Manifest
    emitted_at: float  # on the recorder's clock
    last_observed: str
    count: int = 1
    written: int = 0
    queued: bool = False

    @property
    def series(self) -> dict[str, Any]:
        """The field ``series`` of the API; only for Events that were repeated."""
        return {"count": self.count, "lastObservedTime": self.last_observed}


class EventRecorder:
    """Queues Events at once and writes them in the background; the oldest are dropped when there are too many."""

    def __init__(
        self,
        kube: Kube,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Prepare; ``run`` writes.

        Args:
            kube: access to the API server.
            instance: name of this replica's pod, the Events' ``reportingInstance``.
            clock: monotonic seconds.
            refresh_seconds: how often the counts of continuing series are written.
        """
        self._kube, self._instance, self._clock = kube, instance, clock
        self._refresh_seconds, self._refreshed_at = refresh_seconds, clock()
        self._queue: deque[_RecordedEvent] = deque()
        self._recent: OrderedDict[tuple[str, str, str], _RecordedEvent] = OrderedDict()
        self._microseconds = 0
        self._filled = asyncio.Event()

    def emit(self, job: Manifest, event: Event) -> None:
        """Queue one Event; the same message about the same object is counted, not posted again."""
        meta, now = job["metadata"], self._clock()
        instant = self._instant()
        message_key = (meta["uid"], event.reason.value, event.message)
        self._drop_old(now)
        recorded = self._recent.get(message_key)
        if recorded is not None:
            recorded.count, recorded.emitted_at, recorded.last_observed = recorded.count + 1, now, _text(instant)
            self._recent.move_to_end(message_key)
            if recorded.count == 2:  # further repetitions wait for the next refresh
                self._enqueue(recorded)
            return
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        place = {"namespace": meta["namespace"], "job": meta["name"]}
        log.log(level, "%s: %s", event.reason.value, event.message, extra=place)
        recorded = self._recent[message_key] = _RecordedEvent(self._manifest(job, event, instant), now, _text(instant))
        self._enqueue(recorded)

    async def run(self) -> None:
        """Write until cancelled; then write what was emitted before that."""
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
        """Write what is queued, in the order of emission, and the counts that are due."""
        if self._clock() - self._refreshed_at >= self._refresh_seconds:
            self._refresh()
        while self._queue:
            recorded = self._queue.popleft()
            try:
                await self._write(recorded)
            except asyncio.CancelledError:
                self._queue.appendleft(recorded)  # a second write is harmless: its name exists already
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

    def _drop_old(self, now: float) -> None:
        """Drop messages that have not been repeated for long. The oldest go first when there are too many."""
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
                recorded.written = count  # a refused Event would be refused again: do not retry
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
                recorded.written = 0  # the API server no longer keeps it
            else:
                return
        body = recorded.manifest | ({"series": recorded.series} if recorded.count > 1 else {})
        with contextlib.suppress(AlreadyExists):  # an earlier try succeeded and its answer was lost
            await self._kube.create_event(namespace, body)

    def _instant(self) -> datetime:
        """The wall clock in whole microseconds, always later than the previous instant."""
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
    """The instant as a MicroTime of the API."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
