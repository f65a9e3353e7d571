"""Service names and addresses for the pods of one node, without any routing in the kernel.

For every Service the node claims a loopback address, listens on it and forwards connections to ready pods. The API
refuses loopback addresses in EndpointSlices, so the node finds the ready pods by the Service's selector.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from localkube.node import addresses
from localkube.node.api import Access
from localkube.node.objects import Json

COPY_BYTES = 65536
CONNECT_SECONDS = 5.0
DOMAIN = "svc.cluster.local"

log = logging.getLogger(__name__)


def is_ready(pod: Json) -> bool:
    """Whether a pod may receive a Service's connections."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def selects(service: Json, pod: Json) -> bool:
    """Whether a Service's selector chooses a pod."""
    selector = service["spec"].get("selector")
    same = service["metadata"]["namespace"] == pod["metadata"]["namespace"]
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and same and all(labels.get(key) == value for key, value in selector.items())


def target_port(port: Json, pod: Json) -> int | None:
    """The pod's port behind a Service's port; None if it has no port of that name."""
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for own in container.get("ports") or []:
            if own.get("name") == target:
                return int(own["containerPort"])
    return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@dataclass
class PortForwarder:
    """One port of a Service. It listens only while a pod behind it is ready."""

    address: str
    port: int
    targets: list[tuple[str, int]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _turn: "itertools.count[int]" = field(default_factory=itertools.count)
    _served: set[asyncio.Task[None]] = field(default_factory=set)

    async def point_at(self, targets: list[tuple[str, int]]) -> None:
        """Forward new connections to these targets; existing connections continue."""
        self.targets = targets
        if targets and self._server is None:
            try:
                self._server = await asyncio.start_server(self._accept, self.address, self.port)
            except OSError as problem:  # a port below 1024 needs a privilege
                log.warning("service port %s:%s: %s", self.address, self.port, problem)
        elif not targets:
            self.close()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._served.add(task)  # the event loop itself has only a weak reference
        task.add_done_callback(self._served.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self.targets:
                host, port = self.targets[next(self._turn) % len(self.targets)]
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        far_reader, far_writer = await asyncio.open_connection(host, port)
                except (OSError, TimeoutError):
                    continue
                try:
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                finally:
                    far_writer.close()
                return
        finally:
            writer.close()


class Services:
    """All Services of the cluster as this node's pods see them."""

    def __init__(self, access: Access, changed: Callable[[], None]) -> None:
        self._access = access
        self._changed = changed
        self._services: dict[str, Json] = {}
        self._pods: dict[str, Json] = {}
        self._claims: dict[str, addresses.AddressClaim] = {}
        self._forwarders: dict[tuple[str, int], PortForwarder] = {}
        self._applying = asyncio.Lock()

    async def on_service(self, kind: str, service: Json) -> None:
        """Take a change of a Service."""
        uid = service["metadata"]["uid"]
        if kind == "DELETED":
            self._services.pop(uid, None)
        else:
            self._services[uid] = service
        await self._apply()

    async def on_pod(self, kind: str, pod: Json) -> None:
        """Take a change of any pod of the cluster."""
        uid, old = pod["metadata"]["uid"], self._pods.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        if old is None or kind == "DELETED" or _facts(old) != _facts(pod):
            await self._apply()

    def _endpoints(self, service: Json) -> list[Json]:
        lenient = service["spec"].get("publishNotReadyAddresses", False)
        chosen = [pod for pod in self._pods.values() if selects(service, pod) and (lenient or is_ready(pod))]
        return [pod for pod in chosen if (pod.get("status") or {}).get("podIP")]

    def _targets(self, service: Json, port: Json) -> list[tuple[str, int]]:
        meta = service["metadata"]
        if meta["namespace"] == "default" and meta["name"] == "kubernetes":
            return [(self._access.host, self._access.port)]
        pods = self._endpoints(service)
        return [(pod["status"]["podIP"], number) for pod in pods if (number := target_port(port, pod)) is not None]

    async def _apply(self) -> None:
        """Make the listening ports and the names match the known Services and pods, one change at a time."""
        async with self._applying:
            await self._fit()

    async def _fit(self) -> None:
        current: set[tuple[str, int]] = set()
        for uid, service in tuple(self._services.items()):  # events arrive while a port is being opened
            if _headless(service):
                continue
            if uid not in self._claims:
                self._claims[uid] = addresses.claim()
            for port in service["spec"].get("ports") or []:
                if port.get("protocol", "TCP") != "TCP":
                    continue
                key = (uid, port["port"])
                current.add(key)
                if key not in self._forwarders:
                    self._forwarders[key] = PortForwarder(self._claims[uid].address, port["port"])
                await self._forwarders[key].point_at(self._targets(service, port))
        for key in self._forwarders.keys() - current:
            self._forwarders.pop(key).close()
        for uid in self._claims.keys() - self._services.keys():
            self._claims.pop(uid).release()
        self._changed()

    def hosts_text(self, namespace: str) -> str:
        """The lines about Services in the hosts file of a pod in this namespace."""
        lines: list[str] = []
        for uid, service in sorted(self._services.items()):
            if not _headless(service):
                if uid in self._claims:
                    lines.append(f"{self._claims[uid].address}\t{_names(service, namespace)}\n")
                continue
            for pod in sorted(self._endpoints(service), key=lambda item: str(item["metadata"]["name"])):
                names = _names(service, namespace)
                if pod["spec"].get("subdomain") == service["metadata"]["name"] and pod["spec"].get("hostname"):
                    names += f" {_names(service, namespace, host=pod['spec']['hostname'])}"
                lines.append(f"{pod['status']['podIP']}\t{names}\n")
        return "".join(lines)


def _headless(service: Json) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")


def _names(service: Json, namespace: str, host: str = "") -> str:
    """All names of a Service (or of one host behind it) that resolve in this namespace, the full one first."""
    meta = service["metadata"]
    name = f"{host}.{meta['name']}" if host else meta["name"]
    longer = f"{name}.{meta['namespace']}"
    names = [f"{longer}.{DOMAIN}", f"{longer}.svc", longer]
    return " ".join(names + ([name] if meta["namespace"] == namespace else []))


def _facts(pod: Json) -> object:
    return is_ready(pod), (pod.get("status") or {}).get("podIP"), pod["metadata"].get("labels")
