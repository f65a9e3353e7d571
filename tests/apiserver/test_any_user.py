"""The operator under a UID that no passwd file knows, without HOME, where only /tmp can be written, as in the chart."""

from __future__ import annotations

from pathlib import Path

from localkube.access import ClusterAccess
from tests.support.cluster import any_user
from tests.support.cluster.crd_server import connect, install_definition
from tests.support.cluster.manifests import training_job
from tests.support.operator.process import OperatorProcess
from tests.support.polling import until


def test_the_operator_runs_under_any_uid(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> None:
    any_user.demand()
    install_definition(cluster.kubeconfig)
    scratch = tmp_path / "scratch"  # the client writes a kubeconfig's certificates into files
    scratch.mkdir()
    operator = OperatorProcess(
        cluster.kubeconfig, tmp_path, namespace, prefix=any_user.command(scratch), TMPDIR=str(scratch)
    )
    try:
        operator.wait_leading()
        until(lambda: operator.get("health", "/readyz")[0] == 200, 20, "ready")
        with connect(cluster.kubeconfig, namespace) as jobs:
            jobs.create(training_job("any", namespace=namespace))
            until(lambda: jobs.merge("any", {}).get("status", {}).get("conditions"), 20, "a status for the job")
        status = Path(f"/proc/{operator.process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
    finally:
        assert operator.stop() == 0
