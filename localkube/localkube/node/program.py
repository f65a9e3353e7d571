"""A node from start to stop: registration, watches, pods, logs."""

import asyncio
import contextlib
import logging
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from localkube.node import addresses
from localkube.node.api import Access, Api, Sink
from localkube.node.containers import ContainerPlan, ContainerProcess, Sandbox, StartFailed
from localkube.node.context import NodeContext
from localkube.node.images import Images
from localkube.node.logs import Found, LogServer
from localkube.node.objects import Json
from localkube.node.pods import PodWorker
from localkube.node.registration import Registration
from localkube.node.services import Services
from localkube.node.status import TERMINAL, timestamp

EXIT_SECONDS = 10.0
TRIAL_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeSettings:
    """The settings of a node, as its command line gives them."""

    kubeconfig: Path
    name: str
    images: Images
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Json] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)
    state_dir: Path | None = None
    isolation: str = "namespaces"
    lease_seconds: int = 8
    backoff_seconds: float = 10.0
    refresh_seconds: float = 10.0
    stop_seconds: float = 5.0
    delete_on_exit: bool = False
    service_address: tuple[str, int] | None = None  # where pods reach the API server; None: where the node does


async def make_sandbox(isolation: str, folder: Path) -> Sandbox:
    """Try how containers can be isolated on this machine. Raises StartFailed if `isolation` does not work."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    attempts = [Sandbox(isolation, user_namespace, str(root)) for user_namespace in (False, True)]
    problem: StartFailed | None = None
    for sandbox in attempts if isolation == "namespaces" else attempts[:1]:
        plan = ContainerPlan(["true"], {"PATH": "/usr/bin:/bin"}, "/", "trial", str(folder / "trial.log"), (),
                    read_only_root=False, no_new_privileges=False)  # fmt: skip
        try:
            await (await ContainerProcess.start(sandbox, plan)).wait(TRIAL_SECONDS)
        except StartFailed as failed:
            problem = failed
            continue
        return sandbox
    raise StartFailed(f"{problem}; with --isolation process pods run without mounts and PID namespaces")


class NodeProgram:
    """One running node and its parts."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.workers: dict[str, PodWorker] = {}
        self._node: NodeContext
        self._stopping = False

    async def run(self, stop: asyncio.Event, ready: Path | None = None) -> None:
        """Run the node until `stop` is set. It creates the file `ready` once the Node is registered."""
        given = self.settings.state_dir
        folder = Path(tempfile.mkdtemp(prefix="localkube-node-")) if given is None else given
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(folder / "pods", ignore_errors=True)  # of a process that was killed
        api = Api(Access.from_kubeconfig(self.settings.kubeconfig))
        probes = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, force_close=True))
        try:
            async with contextlib.aclosing(api), probes:
                with addresses.claim() as claim:
                    sandbox = await make_sandbox(self.settings.isolation, folder)
                    self._node = NodeContext(
                        self.settings.name, claim.address, folder, api, probes, sandbox, self.settings.images,
                        self.settings.backoff_seconds, self.settings.refresh_seconds,
                        self.settings.service_address or (api.access.host, api.access.port),
                    )  # fmt: skip
                    await self._serve(stop, ready)
        finally:
            if given is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                for leftover in ("pods", "root"):
                    shutil.rmtree(folder / leftover, ignore_errors=True)
                (folder / "trial.log").unlink(missing_ok=True)

    async def _serve(self, stop: asyncio.Event, ready: Path | None) -> None:
        node, settings = self._node, self.settings
        logs = LogServer(node.address, self.find_log)
        services = Services(node.api.access, self._names_changed)
        node.hosts_text = services.hosts_text
        registration = Registration(
            node.api, node.name, node.address, await logs.start(), settings.lease_seconds, settings.labels,
            settings.taints, settings.capacity,
        )  # fmt: skip
        await registration.register()
        log.info("node %s registered at %s, isolation %s", node.name, node.address, node.sandbox)
        duties = [
            registration.keep_lease(),
            registration.keep_status(),
            node.api.follow("/api/v1/pods", Sink(self._on_pod), fieldSelector=f"spec.nodeName={node.name}"),
            node.api.follow("/api/v1/services", Sink(services.on_service)),
            node.api.follow("/api/v1/pods", Sink(services.on_pod), fieldSelector="status.phase=Running"),
        ]
        tasks = [asyncio.create_task(duty) for duty in duties]
        if ready:
            ready.touch()  # noqa: ASYNC240  a local file
        await asyncio.wait([asyncio.create_task(stop.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
        await self._leave(registration)
        for task in tasks:
            task.cancel()
        for problem in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(problem, Exception):
                log.error("a duty of the node failed", exc_info=problem)
        await logs.stop()

    async def _leave(self, registration: Registration) -> None:
        """End all pods, with the reason in their status, then the node."""
        self._stopping = True
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                     "message": "Pod was terminated in response to imminent node shutdown.",
                     "lastTransitionTime": timestamp()}  # fmt: skip
        failure = {"phase": "Failed", "reason": "Terminated", "message": condition["message"],
                   "conditions": [condition]}  # fmt: skip
        await registration.leave(delete=False)
        for worker in self.workers.values():
            worker.stop(self.settings.stop_seconds, failure)
        if self.workers:
            await asyncio.wait([worker.task for worker in self.workers.values()],
                               timeout=self.settings.stop_seconds + EXIT_SECONDS)  # fmt: skip
        if self.settings.delete_on_exit:
            await registration.leave(delete=True)

    async def _on_pod(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if kind == "DELETED":
            if worker:
                worker.vanished()
            return
        if worker is None and not self._stopping:
            over = (pod.get("status") or {}).get("phase") in TERMINAL
            if over and "deletionTimestamp" not in pod["metadata"]:
                return  # it ended under an earlier process of this node; only its deletion matters
            worker = self.workers[uid] = PodWorker(self._node, pod)
            worker.task.add_done_callback(lambda _task: self.workers.pop(uid, None))
        if worker is not None:
            worker.update(pod)

    def _names_changed(self) -> None:
        for worker in self.workers.values():
            with contextlib.suppress(FileNotFoundError):  # a pod that has no folder yet, or no longer
                worker.refresh_hosts()

    def find_log(self, namespace: str, pod: str, container: str, previous: bool) -> Found | None:  # noqa: FBT001
        """The log file of a container and whether it grows; None if there is none.

        `namespace` and `pod` name the pod; `previous` selects the run before the newest.
        """
        for worker in self.workers.values():
            meta = worker.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, pod):
                return worker.find_log(container, previous=previous)
        return None
