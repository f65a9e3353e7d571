"""An operator that serves some namespaces: every job there, in its lists and in its watch, and none elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api

from holdfast_contract import keys
from holdfast_contract.exits import ExitCode
from tests.support.cluster.crd_server import connect
from tests.support.cluster.manifests import training_job
from tests.support.operator.process import OperatorProcess
from tests.support.polling import until

SERVED_SECONDS = 20.0


@pytest.fixture
def others(core_api: CoreV1Api) -> Iterator[list[str]]:
    """Two more namespaces."""
    names = [f"test-{secrets.token_hex(4)}" for _ in range(2)]
    for name in names:
        core_api.create_namespace({"metadata": {"name": name}})
    yield names
    for name in names:
        core_api.delete_namespace(name)


def test_jobs_of_the_named_namespaces_are_served_and_no_others(
    kubeconfig: Path, core_api: CoreV1Api, namespace: str, others: list[str], tmp_path: Path
) -> None:
    def create(name: str, *places: str) -> None:
        for place in places:
            with connect(kubeconfig, place) as jobs:
                jobs.create(training_job(name, namespace=place))

    def served(name: str, place: str) -> bool:
        return len(core_api.list_namespaced_pod(place, label_selector=f"{keys.LABEL_JOB_NAME}={name}").items) == 2

    second, unnamed = others
    create("early", unnamed, namespace, second)
    operator = OperatorProcess(
        kubeconfig, tmp_path, namespace, HOLDFAST_OPERATOR_WATCH_NAMESPACES=f"{namespace},{second}"
    )
    try:
        operator.wait_leading()
        for name in ("early", "late"):  # found by a list, and by the watch
            if name == "late":
                create(name, unnamed, namespace, second)
            for place in (namespace, second):
                until(lambda name=name, place=place: served(name, place), SERVED_SECONDS, f"pods of {place}/{name}")
        assert core_api.list_namespaced_pod(unnamed).items == []
    finally:
        assert operator.stop() == 0


def test_a_name_that_cannot_be_one_ends_the_operator(kubeconfig: Path, namespace: str, tmp_path: Path) -> None:
    operator = OperatorProcess(kubeconfig, tmp_path, namespace, HOLDFAST_OPERATOR_WATCH_NAMESPACES="team-a, team-b")
    assert operator.process.wait(timeout=SERVED_SECONDS) == ExitCode.USAGE
    assert "HOLDFAST_OPERATOR_WATCH_NAMESPACES: found ' team-b', allowed: a namespace" in operator.log.read_text()
