"""Health of a running operator: good while the watch tells what happens, bad when it does not."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_operator.gateway import cluster_access
from holdfast_operator.watch import kopf_watch as watch
from localkube.access import ClusterAccess
from tests.support.cluster.crd_server import connect, install_definition
from tests.support.cluster.manifests import training_job
from tests.support.operator.process import OperatorProcess
from tests.support.polling import until


def test_a_watch_that_has_gone_silent_is_proven_dead(cluster: ClusterAccess, namespace: str) -> None:
    """A real watch, cut off from its audience: what a live list shows and it does not tell is the proof."""
    install_definition(cluster.kubeconfig)
    audit, deaf = watch.WatchAudit(limit_seconds=0.5), threading.Event()

    def hear(resource: str, event: str, item: Mapping[str, Any]) -> None:
        if not deaf.is_set():
            audit.delivered(resource, event, item)

    running = watch.KopfWatch(str(cluster.kubeconfig), [namespace], hear)
    running.start()
    try:
        with connect(cluster.kubeconfig, namespace) as jobs:
            first = jobs.create(training_job("first", namespace=namespace))["metadata"]
            until(lambda: audit._delivered.get(watch.JOBS, {}).get(first["uid"]), 20, "the watch tells")
            audit.listed(watch.JOBS, {first["uid"]: first["resourceVersion"]})
            deaf.set()
            second = jobs.create(training_job("second", namespace=namespace))["metadata"]
        audit.listed(watch.JOBS, {m["uid"]: m["resourceVersion"] for m in (first, second)})
        assert audit.problems() == []
        [problem] = until(audit.problems, 5, "a problem")
        assert "trainingjobs" in problem
    finally:
        running.stop()
        running.ended.result(timeout=15)


def test_a_process_is_alive_and_ready_and_says_what_it_serves(
    cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    operator = OperatorProcess(cluster.kubeconfig, tmp_path, namespace)
    try:
        until(lambda: operator.get("health", "/readyz")[0] == 200, 20, "ready")
        assert operator.get("health", "/healthz") == (200, "ok\n")
        assert operator.get("health", "/else")[0] == 404
    finally:
        assert operator.stop() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAMESPACE", "No Such"),
        ("CONTROL_URL", "http://x"),
        ("TLS_DIR", "/none"),
        ("LOG_LEVEL", "loud"),
        ("ORPHAN_SECONDS", "9"),
        ("ORPHAN_SECONDS", "1e3"),
        ("PROGRESS_SECONDS", "0"),
        ("CONTROL_PORT", "70000"),
        ("POD_IP", ""),
    ],
)
def test_wrong_settings_end_with_their_name(cluster: ClusterAccess, tmp_path: Path, name: str, value: str) -> None:
    operator = OperatorProcess(cluster.kubeconfig, tmp_path, "default", **{f"HOLDFAST_OPERATOR_{name}": value})
    assert operator.process.wait(20) == ExitCode.USAGE
    text = operator.log.read_text()
    assert f"HOLDFAST_OPERATOR_{name}: found" in text
    assert "allowed" in text


def test_a_watch_that_ends_says_so(cluster: ClusterAccess, tmp_path: Path) -> None:
    del cluster
    running = watch.KopfWatch(str(tmp_path / "no-kubeconfig"), ["default"], lambda *_: None)
    running.start()
    try:
        assert isinstance(running.ended.exception(timeout=20), cluster_access.AccessError)
    finally:
        running.stop()
