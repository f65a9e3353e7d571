"""Tokens that expire: the API server judges them, the endpoint refuses them by name, an agent takes the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api

from holdfast_contract import keys
from holdfast_contract.sync import PROTOCOL, Report, TrainerPhase
from holdfast_operator.sync_endpoint.authentication import ACCEPTED_SECONDS
from localkube.cluster import Cluster
from tests.support.agent.rig import SERVICE, AgentRig
from tests.support.cluster.crd_server import connect
from tests.support.cluster.kubectl import kubectl
from tests.support.cluster.manifests import training_job
from tests.support.operator.forged_token import claims, with_times
from tests.support.operator.process import OperatorProcess, write_certificate
from tests.support.operator.tls import Authority
from tests.support.polling import until

REPORT = Report(PROTOCOL, 0, "", TrainerPhase.NONE)
REVIEWED_SECONDS = 10.0
"""How long the API server itself may remember that it has accepted a token."""
LEEWAY_SECONDS = 60
"""How long after its expiry the API server still takes a token, since clocks differ."""


@pytest.fixture(scope="module")
def operator(
    local_cluster: Cluster, place: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator whose certificate is for this machine, so that an agent here can call it."""
    folder = tmp_path_factory.mktemp("operator")
    write_certificate(authority, folder / "tls", SERVICE)
    running = OperatorProcess(local_cluster.kubeconfig, folder, place, host=SERVICE)
    yield running.wait_leading()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def issued(local_cluster: Cluster, core_api: CoreV1Api, place: str, operator: OperatorProcess) -> dict[int, str]:
    """A token of each worker's pod as the API server issues it. Nothing runs the pods."""
    with connect(local_cluster.kubeconfig, place) as jobs:
        jobs.api.create_namespaced_custom_object(
            keys.API_GROUP, keys.VERSION, place, keys.PLURAL, training_job("train", namespace=place)
        )

    def pods() -> list[Any]:
        found: list[Any] = core_api.list_namespaced_pod(place, label_selector=keys.LABEL_REPLICA_INDEX).items
        return found if len(found) == 2 else []

    def token_of(pod: Any) -> str:
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod.metadata.name}")
        uid = f"--bound-object-uid={pod.metadata.uid}"
        command = ("-n", place, "create", "token", "default", f"--audience={keys.TOKEN_AUDIENCE}", *bound, uid)
        return kubectl(local_cluster.kubeconfig, *command).strip()

    return {
        int(p.metadata.labels[keys.LABEL_REPLICA_INDEX]): token_of(p) for p in until(pods, 30, "a pod of each index")
    }


@pytest.fixture
def expiring(local_cluster: Cluster, issued: dict[int, str]) -> Callable[..., str]:
    """Makes the same pod's token, still taken for so many seconds; negative: no longer."""
    key_file = local_cluster.layout.pki / "service-account.key"

    def make(seconds_left: float, worker: int = 0) -> str:
        now = int(time.time())
        return with_times(
            issued[worker], key_file, issued=now - 3600, expires=now - LEEWAY_SECONDS + round(seconds_left)
        )

    return make


def test_an_expired_token_is_refused_and_named(operator: OperatorProcess, expiring: Callable[..., str]) -> None:
    alive, dead = expiring(600), expiring(-1)
    assert {k: v for k, v in claims(alive).items() if k != "exp"} == {
        k: v for k, v in claims(dead).items() if k != "exp"
    }
    assert operator.sync(alive, REPORT, wait=20)[0] == 200, "nothing but its time is wrong with the other one"
    status, body, headers = operator.sync(dead, REPORT)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "token has expired" in body["error"]
    assert dead.rsplit(".", 1)[1] not in operator.log.read_text()


def test_a_token_that_was_accepted_is_refused_soon_after_its_end(
    operator: OperatorProcess, expiring: Callable[..., str]
) -> None:
    token = expiring(3)
    assert operator.sync(token, REPORT, wait=20)[0] == 200

    def refusal() -> dict[str, Any] | None:
        status, body, _ = operator.sync(token, REPORT)
        return body if status == 401 else None

    refused = until(refusal, ACCEPTED_SECONDS + REVIEWED_SECONDS + 15, "refused")
    assert "token has expired" in refused["error"], "not because of anything else"


def test_an_agent_takes_a_renewed_token_without_a_restart(
    local_cluster: Cluster,
    operator: OperatorProcess,
    authority: Authority,
    expiring: Callable[..., str],
    place: str,
    tmp_path: Path,
) -> None:
    """As the kubelet does it: the file is replaced by another one under the same name."""
    rig = AgentRig(tmp_path, authority)
    rig.environment[keys.ENV_CONTROL_URL] = f"https://{SERVICE}:{operator.ports()['control']}"
    rig.token_file.write_text(expiring(-1, worker=1))
    before = ready(local_cluster, place)
    try:
        rig.start("for_ever()")
        rig.wait_output("the operator answered 401")
        assert "token has expired" in rig.output
        renewed = tmp_path / "renewed"
        renewed.write_text(expiring(600, worker=1))
        os.replace(renewed, rig.token_file)
        rig.wait_output("the operator answers again", 30.0)
        until(lambda: ready(local_cluster, place) == before + 1, 30.0, "the operator counts its worker")
        assert rig.process is not None
        assert rig.process.poll() is None
    finally:
        rig.close()


def ready(cluster: Cluster, place: str) -> int:
    """How many workers the operator has heard of."""
    path = "jsonpath={.status.workers.ready}"
    return int(kubectl(cluster.kubeconfig, "-n", place, "get", keys.PLURAL, "train", "-o", path) or 0)


def test_times_are_all_that_a_test_changes_in_a_token(issued: dict[int, str], expiring: Callable[..., str]) -> None:
    before = claims(issued[0])
    after = claims(expiring(600))
    assert {k for k in before if before[k] != after[k]} <= {"exp", "iat", "nbf"}
    assert before.keys() == after.keys()
