"""The recorder of Kubernetes Events: best effort, bounded, and without any influence on reconciling."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from holdfast_contract import keys
from holdfast_operator.decide.actions import Event
from holdfast_operator.gateway.errors import KubeError, TooManyRequests, Unavailable
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.ports import Manifest

QUEUE_LIMIT: Final = 1000
DEDUPE_SECONDS: Final = 120.0
TRIES: Final = 3
RETRY_SECONDS: Final = 1.0
COMPONENT: Final = "holdfast-operator"
MAX_MESSAGE: Final = 1024

log = logging.getLogger(__name__)


class Recorder:
    """Takes events at once and writes them in the background; the oldest are dropped when there are too many."""

    def __init__(self, kube: Kube, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._instance, self._clock = kube, instance, clock
        self._queue: deque[tuple[str, Manifest]] = deque(maxlen=QUEUE_LIMIT)
        self._recent: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._filled = asyncio.Event()

    def emit(self, job: Manifest, event: Event) -> None:
        """Queue one event; the same words about the same object are said once in two minutes."""
        meta = job["metadata"]
        if self._said_lately((meta["uid"], event.reason.value, event.message)):
            return
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        place = {"namespace": meta["namespace"], "job": meta["name"]}
        log.log(level, "%s: %s", event.reason.value, event.message, extra=place)
        self._queue.append((meta["namespace"], self._manifest(job, event)))
        self._filled.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            if not self._queue:
                self._filled.clear()
                await self._filled.wait()
            namespace, manifest = self._queue.popleft()
            await self._write(namespace, manifest)

    async def _write(self, namespace: str, manifest: Manifest) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                await self._kube.create_event(namespace, manifest)
                return
            except (TooManyRequests, Unavailable) as error:
                log.debug("event not written (try %d): %s", attempt, error)
                await asyncio.sleep(RETRY_SECONDS * attempt)
            except KubeError as error:
                log.debug("event dropped: %s", error)
                return

    def _said_lately(self, words: tuple[str, str, str]) -> bool:
        now = self._clock()
        while self._recent and (
            len(self._recent) > QUEUE_LIMIT or next(iter(self._recent.values())) < now - DEDUPE_SECONDS
        ):
            self._recent.popitem(last=False)
        if words in self._recent:
            return True
        self._recent[words] = now
        return False

    def _manifest(self, job: Manifest, event: Event) -> Manifest:
        meta, now = job["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name'][:230]}.{secrets.token_hex(8)}", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": keys.API_VERSION,
                "kind": keys.KIND,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "reason": event.reason.value,
            "message": event.message[:MAX_MESSAGE],
            "type": event.type,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
