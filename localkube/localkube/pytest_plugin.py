"""Fixtures for tests on a real API server: one control plane per test run, one namespace per test.

To use them, write `pytest_plugins = ["localkube.pytest_plugin"]` in the top conftest.py.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localkube.access import DISCOVERY_CACHE_VARIABLE, ClusterAccess
from localkube.progress import to_stderr

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from localkube.cluster import Cluster

KUBECONFIG_VARIABLE = "LOCALKUBE_TEST_KUBECONFIG"
"""Names the kubeconfig of the cluster to test on; without it localkube starts one."""
_ACCOUNT_SECONDS = 30.0
_POLL_SECONDS = 0.02


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterAccess]:
    """The cluster of the test run: localkube's own, or the one that LOCALKUBE_TEST_KUBECONFIG names."""
    given = os.environ.get(KUBECONFIG_VARIABLE)
    if given:
        path = Path(given)
        if not path.is_file():
            pytest.fail(f"{KUBECONFIG_VARIABLE}={given}: no such file")
        yield ClusterAccess(path)
        return
    from localkube.cluster import Cluster

    with Cluster(progress=to_stderr()) as own, pytest.MonkeyPatch.context() as environment:
        environment.setenv(
            DISCOVERY_CACHE_VARIABLE, str(own.discovery_cache)
        )  # for kubectl and Helm commands that tests start directly
        yield own


@pytest.fixture(scope="session")
def local_cluster(cluster: ClusterAccess) -> Cluster:
    """The same, for tests that need its audit log, nodes or faults; skips them on a cluster that is not localkube's."""
    from localkube.cluster import Cluster

    if not isinstance(cluster, Cluster):
        pytest.skip(f"needs localkube's own cluster, and {KUBECONFIG_VARIABLE} is set")
    return cluster


@pytest.fixture(scope="session")
def core_api(cluster: ClusterAccess) -> CoreV1Api:
    """The core API as the administrator."""
    from kubernetes import client

    return client.CoreV1Api(cluster.api_client())


@pytest.fixture
def namespace(core_api: CoreV1Api) -> Iterator[str]:
    """A namespace for one test, ready for pods. Its deletion starts after the test, which does not wait for the end."""
    name = f"test-{secrets.token_hex(4)}"
    core_api.create_namespace({"metadata": {"name": name, "labels": {"localkube.dev/test": "true"}}})
    try:
        _await_account(core_api, name)
        yield name
    finally:
        core_api.delete_namespace(name)


def _await_account(core_api: CoreV1Api, namespace: str) -> None:
    """Without its default ServiceAccount a namespace refuses pods."""
    deadline = time.monotonic() + _ACCOUNT_SECONDS
    while not core_api.list_namespaced_service_account(namespace, field_selector="metadata.name=default").items:
        if time.monotonic() > deadline:
            pytest.fail(f"namespace {namespace} has no default ServiceAccount after {_ACCOUNT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
