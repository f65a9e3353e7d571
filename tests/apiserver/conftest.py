"""The run's cluster with the CRD in it, and what its tests talk to it with."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api

from holdfast_operator.gateway import cluster_access
from holdfast_operator.gateway.kube import Kube
from localkube.access import ClusterAccess
from tests.support.cluster.crd_server import Jobs, connect, install_definition
from tests.support.operator.reconcile_rig import Rig, rig
from tests.support.polling import until


@pytest.fixture(scope="module")
def established(cluster: ClusterAccess) -> dict[str, Any]:
    """The CRD as the server holds it."""
    return install_definition(cluster.kubeconfig)


@pytest.fixture(scope="module")
def kubeconfig(cluster: ClusterAccess, established: dict[str, Any]) -> Path:
    """Leads to a cluster that serves TrainingJobs."""
    assert established
    return cluster.kubeconfig


@pytest.fixture(scope="module")
def place(kubeconfig: Path, core_api: CoreV1Api) -> Iterator[str]:
    """A namespace for the whole file."""
    name = f"test-{secrets.token_hex(4)}"
    core_api.create_namespace({"metadata": {"name": name}})
    until(lambda: core_api.list_namespaced_service_account(name).items, 20, "the default account")
    yield name
    core_api.delete_namespace(name)


@pytest.fixture
def jobs(kubeconfig: Path, namespace: str) -> Iterator[Jobs]:
    """The TrainingJobs of the test's namespace."""
    with connect(kubeconfig, namespace) as found:
        yield found


@pytest.fixture
def play(kubeconfig: Path, namespace: str) -> Iterator[Rig]:
    """The reconciler in this process, with pods that nothing runs."""
    with rig(kubeconfig, namespace) as made:
        yield made


@pytest.fixture
def kube(kubeconfig: Path) -> Iterator[Kube]:
    """The operator's client."""
    made = Kube(cluster_access.load(str(kubeconfig)))
    yield made
    made.close()
