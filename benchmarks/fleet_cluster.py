"""The cluster of ``benchmarks.fleet``: a real control plane, nodes and kubelets on paper, the operator as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import urllib3.exceptions
from kubernetes import client, watch

from benchmarks.fleet_agent import Pod
from holdfast_contract import crd, keys
from localkube.certs import Authority
from localkube.cluster import Cluster
from localkube.components import ClusterOptions
from localkube.kubeconfig import write_kubeconfig

NAMESPACE: Final = "fleet"
OPERATOR_USER: Final = "holdfast-operator"
SERVICE_NAME: Final = "holdfast.fleet.svc"
PODS_PER_NODE: Final = 100
WAIT_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 0.5
DAY_SECONDS: Final = 86_400


def until(done: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Poll until something holds. Raises TimeoutError that says what did not happen."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def make_cluster() -> Cluster:
    """A control plane whose nodes need no heartbeat."""
    return Cluster(options=ClusterOptions(node_monitor_grace_seconds=DAY_SECONDS))


class PaperCluster:
    """Nodes without machines, and the kubelet's part in the life of a pod."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._ended = cluster, threading.Event()
        self._core = client.CoreV1Api(cluster.api_client())
        self._custom = client.CustomObjectsApi(cluster.api_client())
        self._addresses = 0

    def prepare(self, workers: int) -> None:
        """Install the CRD; make the namespace and nodes for so many workers and as many replacements."""
        cluster = self._cluster
        cluster.kubectl("apply", "--server-side", "-f", str(Path(__file__).parents[1] / crd.TARGETS[0]))
        until(self._is_served, "the API server serves TrainingJobs")
        self._core.create_namespace({"metadata": {"name": NAMESPACE}})
        accounts = self._core.list_namespaced_service_account
        until(lambda: bool(accounts(NAMESPACE).items), "the default account")
        for number in range(1 + 2 * workers // PODS_PER_NODE):
            self._make_node(f"paper-{number}")

    def start_kubelets(self, on_pod: Callable[[str, Pod], None]) -> None:
        """From now on pods run; ``on_pod`` receives the job's name and each pod that runs, in a thread of its own."""
        threading.Thread(target=self._be_kubelets, args=(on_pod,), name="kubelets", daemon=True).start()

    def end(self) -> None:
        """The control plane is about to end."""
        self._ended.set()

    def create_job(self, name: str, workers: int) -> None:
        """Create a TrainingJob whose failures exhaust no budget."""
        container = {
            "name": keys.TRAINER_CONTAINER,
            "image": "paper",
            "command": ["train"],
            "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
        }
        volume = {"name": "checkpoints", "emptyDir": {}}
        spec = {
            "replicas": workers,
            "template": {"spec": {"containers": [container], "volumes": [volume], "restartPolicy": "Never"}},
            "checkpoint": {"path": "/checkpoints", "every": {"steps": 300}},
            "recovery": {"maxFailures": 100, "noProgressLimit": 1000},
        }
        job = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": {"name": name}, "spec": spec}
        self._custom.create_namespaced_custom_object(keys.API_GROUP, keys.VERSION, NAMESPACE, keys.PLURAL, job)

    def _is_served(self) -> bool:
        path = f"/apis/{keys.API_VERSION}/{keys.PLURAL}?limit=1"
        return self._cluster.kubectl("get", "--raw", path, check=False).returncode == 0

    def _make_node(self, name: str) -> None:
        self._core.create_node({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        room = {"cpu": "1000", "memory": "1000Gi", "pods": str(PODS_PER_NODE)}
        ready = {"type": "Ready", "status": "True", "reason": "Paper", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self._core.patch_node_status(name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})

    def _be_kubelets(self, on_pod: Callable[[str, Pod], None]) -> None:
        while not self._ended.is_set():
            try:
                for event in watch.Watch().stream(
                    self._core.list_namespaced_pod, NAMESPACE, label_selector=keys.LABEL_JOB_NAME, timeout_seconds=3600
                ):
                    self._look_after(event["object"], on_pod)
            except (client.ApiException, urllib3.exceptions.HTTPError) as error:
                if not self._ended.is_set():
                    sys.stderr.write(f"the paper kubelets begin again: {error}\n")
                    time.sleep(AGAIN_SECONDS)

    def _look_after(self, pod: Any, on_pod: Callable[[str, Pod], None]) -> None:
        meta = pod.metadata
        if meta.deletion_timestamp is not None:
            self._core.delete_namespaced_pod(meta.name, NAMESPACE, grace_period_seconds=0)
        elif pod.spec.node_name and pod.status.phase == "Pending":
            self._addresses += 1
            address = f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
            self._core.patch_namespaced_pod_status(meta.name, NAMESPACE, {"status": status})
            index = int(meta.labels[keys.LABEL_REPLICA_INDEX])
            on_pod(meta.labels[keys.LABEL_JOB_NAME], Pod(meta.uid, index, self._token(meta)))

    def _token(self, meta: Any) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "uid": meta.uid}
        request = {"spec": {"audiences": [keys.TOKEN_AUDIENCE], "boundObjectRef": bound, "expirationSeconds": 7200}}
        answer = self._core.create_namespaced_service_account_token("default", NAMESPACE, request)
        return str(answer.status.token)


class OperatorUnderTest:
    """The operator as a process, with an identity of its own at the API server."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.authority = folder / "ca.crt"
        own = Authority.create("fleet")
        self.authority.write_bytes(own.pem)
        own.server(SERVICE_NAME, [SERVICE_NAME]).write(folder, "tls")
        identity = Authority.load(cluster.layout.pki).client(OPERATOR_USER, ["system:masters"])
        api_authority = (cluster.layout.pki / "ca.crt").read_bytes()
        kubeconfig = write_kubeconfig(folder / "operator.kubeconfig", cluster.server_url, api_authority, identity)
        settings = {
            "NAMESPACE": NAMESPACE,
            "POD_NAME": "operator",
            "POD_IP": "127.0.0.1",
            "CONTROL_URL": f"https://{SERVICE_NAME}:8443",
            "TLS_DIR": str(folder),
            "LEASE_NAME": "holdfast",
            "BIND_ADDRESS": "127.0.0.1",
            **{f"{port}_PORT": "0" for port in ("CONTROL", "HEALTH", "METRICS")},
        }
        variables = {f"HOLDFAST_OPERATOR_{name}": value for name, value in settings.items()}
        variables = {**os.environ, **variables, "KUBECONFIG": str(kubeconfig)}
        self._log = folder / "operator.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "holdfast_operator"]
            self.process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def wait_leading(self) -> dict[str, int]:
        """The ports that it has taken, once it leads."""
        until(lambda: "leading as" in self._log.read_text() or self.process.poll() is not None, "the operator leads")
        [line] = [line for line in self._log.read_text().splitlines() if "listening as" in line]
        return {name: int(port) for name, port in re.findall(r"(\w+)=(\d+)", line)}

    def log(self) -> str:
        """Everything that it has logged."""
        return self._log.read_text()

    def stop(self) -> None:
        """End it as the kubelet does."""
        self.process.terminate()
        self.process.wait(20)
