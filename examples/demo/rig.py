"""The demo's cluster: a control plane, three nodes, Holdfast installed with Helm, and the operations that the acts need."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kubernetes import client

from examples.demo.jobs import Training, manifest
from holdfast_contract import keys
from localkube import helm_install
from localkube.cluster import Cluster
from localkube.faultproxy import FaultProxy, Hook, upstream_of
from localkube.helm_install import Release
from localkube.nodes import NodeOptions
from localkube.progress import to_stderr

NODES: Final = ("node-a", "node-b", "node-c")
NAMESPACE: Final = "training"
OPERATOR_NAMESPACE: Final = "holdfast-system"
RELEASE: Final = "holdfast"
HELM_SECONDS: Final = 120
REQUEST_SECONDS: Final = 10
POD_POLL_SECONDS: Final = 0.2


class Rig:
    """A cluster for one demo. Everything is removed when the ``with`` block ends."""

    def __init__(self, repository: Path, hook: Hook) -> None:
        self.on_pods: Callable[[dict[int, dict[str, Any]]], object] = lambda _: None
        self._repository = repository
        self._hook = hook
        self._progress = to_stderr()
        self._cluster = Cluster(progress=self._progress)
        self._stop = threading.Event()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        began = time.monotonic()
        with ExitStack() as held:
            held.enter_context(self._cluster)
            self._proxy = held.enter_context(FaultProxy(upstream_of(self._cluster), self._hook))
            held.callback(self._stop.set)
            self._start_nodes()
            self._connect()
            self._install()
            self._held = held.pop_all()
        print(
            f"-- control plane, {len(NODES)} nodes and Holdfast are up after {time.monotonic() - began:.1f} s",
            flush=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._cluster.kubeconfig

    @property
    def api_port(self) -> int:
        """The port at which this rig's pods reach the API server: the fault proxy's port, unique to this cluster."""
        return self._proxy.port

    @property
    def kubectl(self) -> Sequence[str]:
        """The first words of a kubectl command line."""
        return self._cluster.kubectl_command()

    def apply(self, training: Training) -> None:
        """Create a TrainingJob."""
        job = manifest(training, namespace=NAMESPACE)
        self._jobs.create_namespaced_custom_object(*self._kind, job, _request_timeout=REQUEST_SECONDS)

    def get_job(self, name: str) -> dict[str, Any]:
        """Return a TrainingJob in its current state."""
        job: dict[str, Any] = self._jobs.get_namespaced_custom_object(
            *self._kind, name, _request_timeout=REQUEST_SECONDS
        )
        return job

    def uid(self, name: str) -> str:
        """Return the UID of a TrainingJob."""
        return str(self.get_job(name)["metadata"]["uid"])

    def wait_succeeded(self, name: str, *, timeout_seconds: float) -> None:
        """Wait until a job has succeeded.

        Raises RuntimeError if it failed and TimeoutError if it did not end; both show its conditions.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            status = self.get_job(name).get("status") or {}
            held = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
            if "Succeeded" in held:
                return
            if "Failed" in held or time.monotonic() > deadline:
                kind = RuntimeError if "Failed" in held else TimeoutError
                raise kind(f"{name}: {status.get('conditions')} {status.get('lastEnd')}")
            time.sleep(POD_POLL_SECONDS)

    def pods(self, job: str) -> dict[int, dict[str, Any]]:
        """Return the newest pod of each worker."""
        answer = self._core.list_namespaced_pod(
            NAMESPACE,
            label_selector=f"{keys.LABEL_JOB_NAME}={job}",
            _request_timeout=REQUEST_SECONDS,
            _preload_content=False,
        )
        newest: dict[int, dict[str, Any]] = {}
        for pod in sorted(json.loads(answer.data)["items"], key=_created_in_attempt):
            newest[int(pod["metadata"]["labels"][keys.LABEL_REPLICA_INDEX])] = pod
        return newest

    def node_of(self, job: str, worker: int) -> str:
        """Return the node of a worker's newest pod."""
        return str(self.pods(job)[worker]["spec"]["nodeName"])

    def follow_pods(self, job: str) -> None:
        """Start a thread that calls ``on_pods`` with the job's running pods, again and again."""

        def run() -> None:
            while not self._stop.wait(POD_POLL_SECONDS):
                try:
                    running = {w: p for w, p in self.pods(job).items() if _has_started(p)}
                except Exception as error:  # the API server may be busy; the next poll finds the pods
                    print(f"   pods of {job}: {error}")
                    continue
                self.on_pods(running)

        threading.Thread(target=run, name="pods", daemon=True).start()

    def taint(self, node: str, key: str) -> None:
        """Add a NoSchedule taint to a node."""
        self._cluster.kubectl("taint", "node", node, f"{key}=:NoSchedule", "--overwrite")

    def untaint(self, node: str, key: str) -> None:
        """Remove a taint from a node."""
        self._cluster.kubectl("taint", "node", node, f"{key}-")

    def _start_nodes(self) -> None:
        options = NodeOptions(
            images={"holdfast/*": Path(sys.prefix)},
            entrypoints={"holdfast/operator": "python -m holdfast_operator"},
            # A kubelet would wait 10, 20, 40 ... s between restarts of the operator, which the demo kills on purpose.
            arguments=["--service-address", f"127.0.0.1:{self._proxy.port}", "--backoff-seconds", "0"],
        )
        self._cluster.add_nodes(NODES, options)

    def _connect(self) -> None:
        api = self._cluster.api_client()
        self._core, self._jobs = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._kind = (keys.API_GROUP, keys.VERSION, NAMESPACE, keys.PLURAL)

    def _install(self) -> None:
        # One replica: training must go on while no operator runs, and a standby would take over.
        options = ["--set=image.repository=holdfast/operator", "--set=replicas=1", "--set=progressSeconds=2"]
        release = Release(RELEASE, self._repository / "charts" / "holdfast", OPERATOR_NAMESPACE, options)
        helm_install.install(self._cluster, release, deadline_seconds=HELM_SECONDS, progress=self._progress)
        self._cluster.kubectl("create", "namespace", NAMESPACE)


def _created_in_attempt(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"].get(keys.LABEL_CREATED_IN_ATTEMPT, 0))


def _has_started(pod: dict[str, Any]) -> bool:
    return any("running" in (s.get("state") or {}) for s in pod.get("status", {}).get("containerStatuses") or [])
