"""The watch: kopf in a thread of its own, used only to say which objects have changed.

Its handlers receive raw events and return nothing, so kopf writes nothing: no annotations, finalizers, Events or peering.
An event only wakes a job; every decision reads the objects again. If the watch ends, the process ends and is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, cast

import kopf

from holdfast_contract import keys
from holdfast_operator.gateway import cluster_access

SERVER_SECONDS: Final = 60
"""The API server ends each watch request after this time; the next request continues where it ended."""
INACTIVITY_SECONDS: Final = 70.0
CONNECT_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0

JOBS: Final = keys.PLURAL
PODS: Final = "pods"
NODES: Final = "nodes"

log = logging.getLogger(__name__)

Sink = Callable[[str, str, Mapping[str, Any]], None]
"""Takes (resource, event type or "", object). Called in the watch's thread."""


class KopfWatch:
    """Watches TrainingJobs, pods of jobs, and nodes, from ``start`` until ``stop``."""

    def __init__(self, kubeconfig: str | None, namespaces: Sequence[str], sink: Sink) -> None:
        """Prepare the watch.

        Args:
            kubeconfig: path of a kubeconfig; None uses the pod's ServiceAccount.
            namespaces: the namespaces to watch; none at all means the whole cluster.
            sink: receives every event.
        """
        self._kubeconfig, self._namespaces, self._sink = kubeconfig, namespaces, sink
        self._stop, self._ready, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.ended: Future[None] = Future()
        """Done when the watch has ended; holds the exception that ended it, if there was one."""

    @property
    def ready(self) -> bool:
        """Whether kopf has started."""
        return self._ready.is_set()

    def start(self) -> None:
        """Start the watch in a new thread."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Ask the watch to end; ``ended`` is done once it has."""
        self._stop.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # of any kind: the process must learn that the watch has ended
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            if self.ended.done():
                return
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _login(self) -> kopf.ConnectionInfo:
        """Read the credentials again, since tokens rotate. kopf would run on without a watch after a failed login: end."""
        try:
            return cluster_access.for_watch(cluster_access.load(self._kubeconfig))
        except Exception as error:
            self._end(error)
            raise

    async def _operate(self) -> None:
        everywhere: dict[str, Any] = {"clusterwide": True}
        await kopf.operator(
            registry=_registry(self._login, self._sink),
            settings=_settings(),
            standalone=True,
            # kopf's default asks for the user's name, and a UID without a passwd entry has none.
            identity=cast("Any", "holdfast"),
            stop_flag=self._stop,
            ready_flag=self._ready,
            **({"namespaces": [*self._namespaces]} if self._namespaces else everywhere),
        )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # needs no permission to list namespaces and CRDs
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = SERVER_SECONDS + REQUEST_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = (1, 2)
    settings.process.ultimate_exiting_timeout = STOP_SECONDS
    return settings


def _registry(login: Callable[[], kopf.ConnectionInfo], sink: Sink) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.PERMANENT)
    async def _credentials(**_: Any) -> kopf.ConnectionInfo:
        return login()

    def on(resource: str, *selector: str, **filters: Any) -> None:
        async def seen(event: kopf.RawEvent, **_: Any) -> None:
            sink(resource, event["type"] or "", event["object"])

        kopf.on.event(*selector, registry=registry, id=resource, **filters)(seen)

    on(JOBS, keys.API_GROUP, keys.VERSION, keys.PLURAL)
    on(PODS, "v1", "pods", labels={keys.LABEL_JOB_NAME: kopf.PRESENT})
    on(NODES, "v1", "nodes")
    return registry


@dataclass(frozen=True)
class _Undelivered:
    version: str
    since: float


class WatchAudit:
    """Detects a dead watch: it measures for how long a version that a live list shows has not been delivered.

    While nothing changes, nothing can be proven, and nothing is missed either. Called from several threads.
    """

    def __init__(self, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``limit_seconds``: how old a change may become before it counts as missed; ``clock``: monotonic seconds."""
        self._limit, self._clock = limit_seconds, clock
        self._delivered: dict[str, dict[str, str]] = {}
        self._undelivered: dict[str, dict[str, _Undelivered]] = {}
        self._lock = threading.Lock()

    def delivered(self, resource: str, event: str, item: Mapping[str, Any]) -> None:
        """Note that the watch has delivered this object.

        Args:
            resource: JOBS, PODS or NODES.
            event: type of the event; "" for the first list.
            item: the object.
        """
        meta = item["metadata"]
        with self._lock:
            self._undelivered.get(resource, {}).pop(meta["uid"], None)
            if event == "DELETED":
                self._delivered.get(resource, {}).pop(meta["uid"], None)
            else:
                self._delivered.setdefault(resource, {})[meta["uid"]] = meta["resourceVersion"]

    def listed(self, resource: str, versions: Mapping[str, str]) -> None:
        """Note the versions, by UID, that a live list shows."""
        now = self._clock()
        with self._lock:
            delivered, before = self._delivered.get(resource, {}), self._undelivered.get(resource, {})
            self._undelivered[resource] = {
                uid: before.get(uid) or _Undelivered(version, now)
                for uid, version in versions.items()
                if delivered.get(uid) != version
            }

    def problems(self) -> list[str]:
        """One sentence per resource of which the watch has missed a change for longer than the limit."""
        now = self._clock()
        found = []
        with self._lock:
            for resource, undelivered in self._undelivered.items():
                oldest = min((u.since for u in undelivered.values()), default=now)
                if now - oldest > self._limit:
                    found.append(f"the watch of {resource} has not delivered a change for {now - oldest:.0f} s")
        return found
