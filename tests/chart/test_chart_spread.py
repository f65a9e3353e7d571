"""Where a real scheduler puts the operator's pods. No node has the image: a pod that is only placed costs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from localkube.cluster import Cluster
from tests.support.cluster.chart import Helm
from tests.support.cluster.kubectl import kubectl
from tests.support.polling import until

FIRST, SECOND = "first", "second"
PLACED_SECONDS = 20.0
DEAD_SECONDS = 60.0
"""The node controller needs 12 s to notice a death."""


@pytest.fixture(scope="module")
def one_node() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.add_node(FIRST)
        yield cluster


@pytest.fixture(scope="module")
def two_nodes(one_node: Cluster) -> Cluster:
    one_node.add_node(SECOND)
    return one_node


def install(cluster: Cluster, release: str, *options: str) -> None:
    kubectl(cluster.kubeconfig, "create", "namespace", release)
    Helm(cluster.kubeconfig).apply("install", release, release, "--set=crd.install=false", *options)


def pods(cluster: Cluster, release: str) -> dict[str, str]:
    """Names of a release's pods that stay, with their nodes, "" for a pod that the scheduler found no node for."""
    items = json.loads(kubectl(cluster.kubeconfig, "-n", release, "get", "pods", "-o", "json"))["items"]
    return {
        p["metadata"]["name"]: p["spec"].get("nodeName", "")
        for p in items
        if "deletionTimestamp" not in p["metadata"] and ("nodeName" in p["spec"] or unschedulable(p))
    }


def unschedulable(pod: dict) -> bool:
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", []))


def wait_placed(cluster: Cluster, release: str, nodes: list[str], seconds: float = PLACED_SECONDS) -> None:
    until(
        lambda: sorted(pods(cluster, release).values()) == sorted(nodes),
        seconds,
        f"pods on {nodes}",
        seen=lambda: pods(cluster, release),
    )


def drain_second(cluster: Cluster, release: str) -> None:
    kubectl(cluster.kubeconfig, "cordon", SECOND)
    (leaving,) = (name for name, node in pods(cluster, release).items() if node == SECOND)
    kubectl(cluster.kubeconfig, "-n", release, "delete", "pod", leaving, "--wait=false")


@pytest.mark.parametrize("spread", ["preferred", "required"])
def test_one_node_is_enough(one_node: Cluster, spread: str) -> None:
    install(one_node, f"one-{spread}", f"--set=spread={spread}")
    wait_placed(one_node, f"one-{spread}", [FIRST, FIRST])


def test_preferred_moves_a_drained_pod_at_once(two_nodes: Cluster) -> None:
    install(two_nodes, "prefers")
    wait_placed(two_nodes, "prefers", [FIRST, SECOND])
    drain_second(two_nodes, "prefers")
    wait_placed(two_nodes, "prefers", [FIRST, FIRST])
    kubectl(two_nodes.kubeconfig, "uncordon", SECOND)


def test_required_waits_for_the_drained_node_and_both_nodes_have_a_pod_again(two_nodes: Cluster) -> None:
    install(two_nodes, "requires", "--set=spread=required")
    wait_placed(two_nodes, "requires", [FIRST, SECOND])
    drain_second(two_nodes, "requires")
    wait_placed(two_nodes, "requires", [FIRST, ""])
    kubectl(two_nodes.kubeconfig, "uncordon", SECOND)
    wait_placed(two_nodes, "requires", [FIRST, SECOND])


def test_a_dead_node_s_pod_is_replaced_after_the_seconds_of_the_value(two_nodes: Cluster) -> None:
    """Last, because the node stays dead. With Kubernetes' own 300 s nothing would move in time."""
    install(two_nodes, "leaves", "--set=nodeFailureSeconds=1")
    wait_placed(two_nodes, "leaves", [FIRST, SECOND])
    two_nodes.nodes.kill(SECOND)
    wait_placed(two_nodes, "leaves", [FIRST, FIRST], DEAD_SECONDS)
