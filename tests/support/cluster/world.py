"""Holdfast as its users have it: a cluster, nodes that run pods, and the chart installed by Helm."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes import client

from localkube import helm_install
from localkube.cluster import Cluster
from localkube.helm_install import Release
from localkube.nodes import NodeOptions
from tests.support.cluster import processes
from tests.support.cluster.chart import IMAGE
from tests.support.polling import until

REPOSITORY: Final = Path(__file__).parents[3]
CHART: Final = REPOSITORY / "charts" / "holdfast"
NODES: Final = ("e2e-a", "e2e-b", "e2e-c")
SYSTEM: Final = "holdfast-system"
RELEASE: Final = "holdfast"
NODE_OPTIONS: Final = NodeOptions(
    images={"holdfast/*": Path(sys.prefix)},
    entrypoints={"holdfast/operator": "python -m holdfast_operator"},
    # A kubelet waits 10, 20, 40 ... s before it starts a container again; these tests kill the operator often.
    arguments=("--backoff-seconds", "0.00001"),
)
HOLDFAST: Final = Release(
    # Other tests may have applied the definition to this cluster already.
    RELEASE,
    CHART,
    SYSTEM,
    # One replica: a kill must take the operator away until its node starts it again.
    options=("--take-ownership", "--force-conflicts", IMAGE, "--set=replicas=1", "--set=progressSeconds=2"),
)

HELM_SECONDS: Final = 90
OPERATOR_SECONDS: Final = 40.0
REQUEST_SECONDS: Final = 10

Object = dict[str, Any]


@dataclass(frozen=True)
class World:
    """The cluster with Holdfast in it, and the verbs of whoever runs it."""

    cluster: Cluster
    core: client.CoreV1Api
    objects: client.CustomObjectsApi

    @classmethod
    def build(cls, cluster: Cluster) -> World:
        """Start the nodes and install the chart. Raises HelmError with what Helm and the operator said."""
        cluster.add_nodes(NODES, NODE_OPTIONS)
        api = cluster.api_client()
        helm_install.install(cluster, HOLDFAST, deadline_seconds=HELM_SECONDS)
        return cls(cluster, client.CoreV1Api(api), client.CustomObjectsApi(api))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of kubectl as the administrator; what it said on standard error, if it failed."""
        done = self.cluster.kubectl(*arguments, stdin=stdin, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def logs(self) -> str:
        """What the operator has written since it was started last."""
        done = self.cluster.kubectl("logs", "-n", SYSTEM, f"deployment/{RELEASE}", "--tail=200", check=False)
        return done.stdout + done.stderr

    def node_logs(self) -> str:
        """The end of what each node has written."""
        logs = {name: (self.cluster.layout.logs / f"{name}.log").read_text(errors="replace") for name in NODES}
        return "\n".join(f"{name}: {line}" for name, text in logs.items() for line in text.splitlines()[-12:])

    # The operator

    def operator_pods(self) -> list[Object]:
        """The operator's pods."""
        selector = f"app.kubernetes.io/instance={RELEASE}"
        answer = self.core.list_namespaced_pod(
            SYSTEM, label_selector=selector, _preload_content=False, _request_timeout=REQUEST_SECONDS
        )
        return [p for p in json.loads(answer.data)["items"] if not p["metadata"].get("deletionTimestamp")]

    def kill_operator(self) -> int:
        """SIGKILL the operator's process; its node starts it again. How many there were."""
        return processes.kill_operators(SYSTEM, self.cluster.server_port)

    @contextmanager
    def operator_away(self) -> Iterator[None]:
        """No operator runs within the block; at its end one is Ready again."""
        self.scale(0)
        try:
            yield
        finally:
            self.scale(1)

    def scale(self, replicas: int) -> None:
        """Scale the operator and wait until so many answer. To 0 is at once, as if its machine had burnt."""
        self.kubectl("scale", f"deployment/{RELEASE}", "-n", SYSTEM, f"--replicas={replicas}")
        if replicas == 0:
            self.kubectl("delete", "pods", "-n", SYSTEM, "--all", "--force", "--grace-period=0")
            until(
                lambda: not processes.kill_operators(SYSTEM, self.cluster.server_port),
                OPERATOR_SECONDS,
                "the operator's end",
            )
        else:
            self.wait_operator(replicas)

    def wait_operator(self, replicas: int = 1) -> None:
        """Wait until so many operator pods are Ready."""
        until(
            lambda: sum(_ready(p) for p in self.operator_pods()) == replicas,
            OPERATOR_SECONDS,
            f"{replicas} operator pods Ready",
            seen=self.logs,
        )

    # Nodes

    def annotate(self, node: str, pair: str) -> None:
        """``KEY=VALUE`` sets an annotation of a node, ``KEY-`` removes it."""
        self.kubectl("annotate", "node", node, pair, "--overwrite")

    def label(self, node: str, pair: str) -> None:
        """``KEY=VALUE`` sets a label of a node, ``KEY-`` removes it."""
        self.kubectl("label", "node", node, pair, "--overwrite")

    def nodes_of_operator(self) -> set[str]:
        """Where the operator runs."""
        return {p["spec"].get("nodeName", "") for p in self.operator_pods()}


def _ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])
