"""The wiring of one replica: its parts, how they are connected, and the order in which they start and stop.

watch (kopf, own thread) ──► watch cache ──► queue ──► reconciler ──► API server
agents ──► control endpoint ◄──► board ◄───────────────────┘
leader elector: queue and board serve only while this replica leads
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from holdfast_contract import keys
from holdfast_operator import lease
from holdfast_operator.decide.children import ControlSettings
from holdfast_operator.gateway import cluster_access
from holdfast_operator.gateway.kube import Kube, Listed, merged_lists, merged_versions
from holdfast_operator.gateway.kube_errors import KubeError, NotFound, TooManyRequests, Unavailable
from holdfast_operator.interfaces import SystemClock
from holdfast_operator.operator_settings import OperatorSettings
from holdfast_operator.reconcile.queue import WorkQueue
from holdfast_operator.reconcile.reconciler import Reconciler
from holdfast_operator.sync_endpoint.authentication import PodAuthenticator
from holdfast_operator.sync_endpoint.board import Board
from holdfast_operator.sync_endpoint.endpoint import ControlEndpoint
from holdfast_operator.sync_endpoint.tls import Certificate
from holdfast_operator.telemetry import json_logs
from holdfast_operator.telemetry.event_recorder import EventRecorder
from holdfast_operator.telemetry.health_server import HealthServer
from holdfast_operator.telemetry.prometheus_metrics import OperatorMetrics
from holdfast_operator.watch import kopf_watch as watch
from holdfast_operator.watch.cache import WatchCache

RESYNC_SECONDS: Final = 30.0
WATCH_SILENCE_SECONDS: Final = 120.0
"""A change that a live list shows must arrive through the watch within this time: two restarts of the watch."""
STOP_SECONDS: Final = 10.0
CRD_SECONDS: Final = 30.0
"""How long the API server may take to serve TrainingJobs: it needs a moment after the CRD is installed."""
RETRY_SECONDS: Final = 0.5
LEASE_THREADS: Final = 2
"""One request of the Lease may hang while the next is sent."""

log = logging.getLogger(__name__)


class Operator:
    """One replica of the operator. Nothing runs before ``run``.

    Args:
        settings: what the environment sets.
        kubeconfig: path of a kubeconfig; None uses the pod's ServiceAccount.
        times: the times of the leader election; None means the defaults.
        watch_silence_seconds: after a missed change this old, the health check fails.

    Raises:
        AccessError: there is no usable way to the API server.
        OSError: a certificate file cannot be read.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        kubeconfig: str | None,
        times: lease.ElectionTimes | None = None,
        watch_silence_seconds: float = WATCH_SILENCE_SECONDS,
    ) -> None:
        self._settings, self._times = settings, times
        self._kube = Kube(cluster_access.load(kubeconfig))
        # Renewing the Lease must wait for no other request: a storm would cost the leadership.
        self._lease_kube = Kube(cluster_access.load(kubeconfig), threads=LEASE_THREADS)
        self._certificate = Certificate(settings.tls_dir)
        self._cache = WatchCache()
        self._metrics = OperatorMetrics(self._cache.jobs, self._live_step)
        self._metrics.set_certificate_expiry(self._certificate.expires_at)
        self._board = Board(self._wake_urgently)
        self._recorder = EventRecorder(self._kube, settings.pod_name)
        self._audit = watch.WatchAudit(watch_silence_seconds)
        self._watch = watch.KopfWatch(kubeconfig, settings.watch_namespaces, self._on_watch_event)
        self._health = HealthServer(problems=self._audit.problems, ready=self._is_ready)
        self._control = ControlEndpoint(
            board=self._board, authenticator=PodAuthenticator(self._kube), leadership=self, metrics=self._metrics
        )
        self._reconciler = self._make_reconciler()
        self._elector: lease.LeaderElector | None = None
        self._queue: WorkQueue | None = None
        self._term: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resync = asyncio.Event()
        self.ports: dict[str, int] = {}

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return self._elector is not None and self._elector.leading

    @property
    def leader_address(self) -> str:
        """host:port of the other replica that leads; "" if no such replica is known."""
        return "" if self._elector is None else self._elector.leader_address

    async def run(self) -> int:
        """Serve until a signal arrives (returns 0) or a part ends that must run forever (returns 1)."""
        self._loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stop.set)
        await self._require_crd()
        elector = await self._listen()
        self._watch.start()
        parts: dict[str, Coroutine[Any, Any, Any]] = {
            "watch": _until_ended(self._watch),
            "lease": elector.run(),
            "events": self._recorder.run(),
            "heartbeat": self._health.beat(),
            "certificate": self._certificate.follow(self._take_certificate),
            "resync": self._resync_forever(),
        }
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        stopped = asyncio.create_task(stop.wait(), name="signal")
        try:
            await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            return _exit_code(tasks)
        finally:
            await self._shut_down([*tasks, stopped])

    async def _shut_down(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Stop acting first, then release the Lease, then stop serving."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                self._end_term()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, *([self._term] if self._term else []), return_exceptions=True)
                if self._elector is not None:
                    await self._elector.release()
                await self._control.stop()
        self._watch.stop()
        self._health.stop()
        self._kube.close()
        self._lease_kube.close()

    async def _require_crd(self) -> None:
        """Wait until the API server serves TrainingJobs. Without the CRD the process ends; the kubelet restarts it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CRD_SECONDS):
                while True:
                    if await self._crd_is_served():
                        return
                    await asyncio.sleep(RETRY_SECONDS)
        raise RuntimeError(f"the API server did not list {keys.PLURAL} within {CRD_SECONDS:.0f} s")

    async def _crd_is_served(self) -> bool:
        """Whether TrainingJobs can be listed now. Raises RuntimeError if the CRD is not installed."""
        try:
            self._cache.replace_jobs(await self._list_jobs())
        except NotFound:
            raise RuntimeError(f"CRD {keys.CRD_NAME} is not installed; install it before the operator") from None
        except (TooManyRequests, Unavailable) as error:
            log.warning("the API server does not list %s yet: %s", keys.PLURAL, error)
            return False
        return True

    async def _listen(self) -> lease.LeaderElector:
        settings, host = self._settings, self._settings.bind_address
        self.ports["control"] = await self._control.start(host, settings.control_port, self._certificate.context)
        self.ports["health"] = self._health.start(host, settings.health_port)
        self.ports["metrics"], _ = self._metrics.serve(host, settings.metrics_port)
        me = lease.identity(settings.pod_name, settings.pod_ip, self.ports["control"])
        self._elector = lease.LeaderElector(
            self._lease_kube,
            namespace=settings.namespace,
            name=settings.lease_name,
            me=me,
            on_change=self._leadership_changed,
            times=self._times,
        )
        log.info("listening as %s: %s", me, " ".join(f"{name}={port}" for name, port in self.ports.items()))
        return self._elector

    def _is_ready(self) -> bool:
        """Whether this replica serves. A standby does, too: it answers agents with the leader's address."""
        return self._watch.ready and self._elector is not None and self._elector.consulted

    # Leading

    def _leadership_changed(self, leading: bool) -> None:  # noqa: FBT001  the elector's callback
        self._metrics.set_leading(leading)
        if not leading:
            self._end_term()
            return
        self._board.open()
        self._queue = WorkQueue(self._work, self._metrics)
        self._term = asyncio.create_task(self._queue.run(), name="queue")
        self._resync.set()

    def _end_term(self) -> None:
        self._board.close()
        self._queue = None
        if self._term is not None:
            self._term.cancel()

    async def _work(self, namespace: str, name: str) -> float | None:
        if not self.leading:
            return None
        with json_logs.job_context(namespace, name, self._cache.attempt(namespace, name)):
            return await self._reconciler.reconcile(namespace, name)

    def _wake(self, namespace: str, name: str, *, urgent: bool = False) -> None:
        if self._queue is not None:
            self._queue.add(namespace, name, urgent=urgent)

    def _wake_urgently(self, namespace: str, name: str) -> None:
        self._wake(namespace, name, urgent=True)

    def _make_reconciler(self) -> Reconciler:
        settings = self._settings
        return Reconciler(
            kube=self._kube,
            board=self._board,
            control=ControlSettings(settings.control_url, self._certificate.ca_pem, settings.orphan_seconds),
            clock=SystemClock(),
            events=self._recorder,
            metrics=self._metrics,
            cache=self._cache,
            progress_seconds=settings.progress_seconds,
        )

    def _take_certificate(self) -> None:
        """Pass the new CA bundle to new pods. The reconciler has no state, so it is simply made again."""
        self._reconciler = self._make_reconciler()
        self._metrics.set_certificate_expiry(self._certificate.expires_at)

    def _live_step(self, namespace: str, name: str) -> int | None:
        """The last completed step of a job's slowest worker, as the agents report it. Called from the scraping thread."""
        return self._board.slowest_step(namespace, name)

    # Watch events and resync

    def _on_watch_event(self, resource: str, event: str, item: Mapping[str, Any]) -> None:
        """Called in the watch's thread."""
        self._audit.delivered(resource, event, item)
        self._metrics.watch_delivered(resource)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._apply_watch_event, resource, event, item)

    def _apply_watch_event(self, resource: str, event: str, item: Mapping[str, Any]) -> None:
        updates = {watch.JOBS: self._cache.job, watch.PODS: self._cache.pod, watch.NODES: self._cache.node}
        # A pod or a node that changes may be a loss or a notice. A list at the watch's start is routine.
        urgent = bool(event) and resource != watch.JOBS
        for key in updates[resource](event, item):
            self._wake(*key, urgent=urgent)

    async def _resync_forever(self) -> None:
        """Every RESYNC_SECONDS: find what the watch has missed by complete lists, and wake every job."""
        while True:
            self._resync.clear()
            try:
                await self._resync_once()
            except KubeError as error:
                log.warning("the resync failed and is tried again in %.0f s: %s", RESYNC_SECONDS, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESYNC_SECONDS):
                    await self._resync.wait()

    async def _resync_once(self) -> None:
        jobs = await self._list_jobs()
        self._cache.replace_jobs(jobs)
        self._audit.listed(watch.JOBS, {j["metadata"]["uid"]: j["metadata"]["resourceVersion"] for j in jobs.items})
        # At once: the lists below may fail, and the watch's echo of what was just stored wakes nobody.
        self._wake_all((j["metadata"]["namespace"], j["metadata"]["name"]) for j in jobs.items)
        pods = merged_versions([await self._kube.pod_versions(n, keys.LABEL_JOB_NAME) for n in self._watched()])
        nodes = await self._kube.node_versions()
        self._audit.listed(watch.PODS, pods.by_uid)
        self._audit.listed(watch.NODES, nodes.by_uid)
        missed = self._cache.compare_pods(pods) | self._cache.compare_nodes(nodes)
        if missed:
            log.debug("the watch has not delivered every change of %d jobs yet; they are read live", len(missed))
            self._wake_all(missed)

    def _wake_all(self, found: Iterable[tuple[str, str]]) -> None:
        for namespace, name in found:
            self._wake(namespace, name)

    async def _list_jobs(self) -> Listed:
        return merged_lists([await self._kube.list_jobs(namespace) for namespace in self._watched()])

    def _watched(self) -> tuple[str | None, ...]:
        """What to list: each namespace of the settings, or None for the whole cluster."""
        return self._settings.watch_namespaces or (None,)


async def _until_ended(watched: watch.KopfWatch) -> None:
    await asyncio.wrap_future(watched.ended)


def _exit_code(tasks: list[asyncio.Task[Any]]) -> int:
    """0 if no part has ended, else 1; logs which part ended and why."""
    code = 0
    for task in tasks:
        if task.done():
            error = None if task.cancelled() else task.exception()
            log.error("%s has ended: %s; the process ends, too", task.get_name(), error or "without an error")
            code = 1
    return code
