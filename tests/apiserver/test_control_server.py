"""The sync endpoint of a running operator, with real tokens of real pods."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from kubernetes.client import CoreV1Api

from holdfast_contract import codec, keys
from holdfast_contract.reasons import Metric
from holdfast_contract.sync import MAX_BODY_BYTES, PROTOCOL, WAIT_HEADER, Directive, Progress, Report, TrainerPhase
from localkube.access import ClusterAccess
from tests.support.cluster.crd_server import connect
from tests.support.cluster.kubectl import kubectl
from tests.support.cluster.manifests import training_job
from tests.support.operator.process import OperatorProcess, fingerprint, self_signed, write_certificate
from tests.support.operator.tls import new_authority
from tests.support.polling import until

REPORT = Report(PROTOCOL, 0, "", TrainerPhase.NONE)


@pytest.fixture(scope="module")
def operator(cluster: ClusterAccess, place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    running = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator"), place)
    yield running.wait_leading()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def worker(cluster: ClusterAccess, core_api: CoreV1Api, place: str, operator: OperatorProcess) -> Any:
    """The pod that the operator has made for a job; nothing runs it."""
    with connect(cluster.kubeconfig, place) as jobs:
        jobs.api.create_namespaced_custom_object(
            keys.API_GROUP, keys.VERSION, place, keys.PLURAL, training_job("train", namespace=place)
        )
    return until(lambda: core_api.list_namespaced_pod(place, label_selector=keys.LABEL_JOB_NAME).items, 30, "a pod")[0]


@pytest.fixture
def token_of(cluster: ClusterAccess) -> Callable[..., str]:
    def make(pod: Any, audience: str = keys.TOKEN_AUDIENCE) -> str:
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod.metadata.name}"]
        uid = f"--bound-object-uid={pod.metadata.uid}"
        place = pod.metadata.namespace
        return kubectl(
            cluster.kubeconfig, "-n", place, "create", "token", "default", f"--audience={audience}", *bound, uid
        ).strip()

    return make


def test_a_member_is_served(operator: OperatorProcess, worker: Any, token_of: Callable[..., str]) -> None:
    status, directive, _ = operator.sync(token_of(worker), REPORT, wait=20)
    assert status == 200, directive
    assert directive["action"] in {"wait", "inspect"}


def test_a_member_that_obeys_is_held_for_as_long_as_it_asks(
    operator: OperatorProcess, worker: Any, token_of: Callable[..., str]
) -> None:
    token = token_of(worker)
    _, raw, _ = operator.sync(token, REPORT, wait=20)
    obeys = codec.from_jsonable(Directive, raw).tag
    until(lambda: _settled(operator, token, obeys), 20, "a directive that stays")
    obeying = replace(REPORT, obeys=obeys)
    patient = threading.Thread(target=operator.sync, args=(token, obeying), kwargs={"wait": 20.0}, daemon=True)
    patient.start()
    began = time.monotonic()
    assert operator.sync(token, obeying, wait=1.5)[0] == 200
    assert time.monotonic() - began >= 1.4
    assert patient.is_alive(), "who asks for longer is held for longer"


def _settled(operator: OperatorProcess, token: str, obeys: str) -> bool:
    _, raw, _ = operator.sync(token, replace(REPORT, obeys=obeys))
    return codec.from_jsonable(Directive, raw).tag == obeys


@pytest.mark.parametrize("token", [None, "", "rubbish", "a.b.c", "x.y." + "z" * 7000])
def test_what_is_no_token_is_refused(operator: OperatorProcess, token: str | None) -> None:
    status, body, headers = operator.sync(token, REPORT)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "token" in body["error"]


def test_a_token_of_another_audience_is_refused(
    operator: OperatorProcess, worker: Any, token_of: Callable[..., str]
) -> None:
    assert operator.sync(token_of(worker, "https://kubernetes.default.svc"), REPORT)[0] == 401


def test_a_token_without_a_pod_is_refused(cluster: ClusterAccess, operator: OperatorProcess, place: str) -> None:
    create = ("-n", place, "create", "token", "default", f"--audience={keys.TOKEN_AUDIENCE}")
    assert "pod" in operator.sync(kubectl(cluster.kubeconfig, *create).strip(), REPORT)[1]["error"]


def test_pods_that_are_no_workers_are_told_to_exit(
    core_api: CoreV1Api, operator: OperatorProcess, place: str, token_of: Callable[..., str]
) -> None:
    """Also one that pretends by labels alone."""
    body = {
        "metadata": {
            "name": "pretender",
            "labels": {keys.LABEL_JOB_NAME: "train", keys.LABEL_JOB_UID: "0", keys.LABEL_REPLICA_INDEX: "0"},
        },
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    pod = core_api.create_namespaced_pod(place, body)
    status, directive, _ = operator.sync(token_of(pod), REPORT)
    assert (status, directive["action"]) == (403, "exit")


def test_a_deleted_pod_is_told_to_exit_whatever_its_token_says(
    core_api: CoreV1Api, operator: OperatorProcess, worker: Any, token_of: Callable[..., str]
) -> None:
    place = worker.metadata.namespace
    others = core_api.list_namespaced_pod(place, label_selector=f"{keys.LABEL_REPLICA_INDEX}=1").items
    pod = next(p for p in others if p.metadata.name != "pretender")
    token = token_of(pod)
    assert operator.sync(token, REPORT, wait=20)[0] == 200
    core_api.delete_namespaced_pod(pod.metadata.name, place, grace_period_seconds=0)
    until(lambda: operator.sync(token, REPORT)[0] in {401, 403}, 30, "refused")


BAD = {
    "not JSON": b"{",
    "an array": b"[]",
    "report.phase": codec.encode(REPORT).replace(b'"none"', b'"dancing"'),
    "report.attempt": codec.encode(REPORT).replace(b'"attempt":0', b'"attempt":"0"'),
    "report.protocol": codec.encode(replace(REPORT, protocol=99)),
    "report.buckets.idle": codec.encode(replace(REPORT, buckets={"idle": 7.5})).replace(b"7.5", b"1e999"),
    "report.progress.last_completed_step": codec.encode(replace(REPORT, progress=Progress(-1))),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_report_is_refused_by_field(
    operator: OperatorProcess, worker: Any, token_of: Callable[..., str], what: str
) -> None:
    status, body, _ = operator.sync(token_of(worker), BAD[what])
    assert status == 400, body
    assert body["field"].startswith("report")
    if what.startswith("report"):
        assert body["field"] == what


def test_a_body_that_is_too_large_is_refused(
    operator: OperatorProcess, worker: Any, token_of: Callable[..., str]
) -> None:
    assert operator.sync(token_of(worker), b" " * (MAX_BODY_BYTES + 1))[0] == 413
    connection = operator.connect()
    headers = {"Authorization": f"Bearer {token_of(worker)}", "Content-Type": "application/json"}
    pieces = iter([b" " * 65536] * 5)
    connection.request("POST", keys.SYNC_PATH, pieces, headers, encode_chunked=True)
    assert connection.getresponse().status == 413


def test_other_methods_types_and_waits_are_refused(
    operator: OperatorProcess, worker: Any, token_of: Callable[..., str]
) -> None:
    token = token_of(worker)
    connection = operator.connect()
    connection.request("GET", keys.SYNC_PATH)
    assert connection.getresponse().status == 405
    assert operator.sync(token, REPORT, Content_Type="text/plain")[0] == 415
    status, body, _ = operator.sync(token, REPORT, wait=999)
    assert (status, body["field"]) == (400, WAIT_HEADER)


def test_a_flood_is_slowed_down(operator: OperatorProcess, worker: Any, token_of: Callable[..., str]) -> None:
    token, seen = token_of(worker), []
    for _ in range(60):
        status, _, headers = operator.sync(token, b"{")
        seen.append(status)
        if status == 429:
            assert int(headers["Retry-After"]) >= 1
            break
    assert seen[-1] == 429, seen
    until(lambda: operator.sync(token, REPORT)[0] == 200, 20, "served again")


def test_plain_text_is_not_answered(operator: OperatorProcess) -> None:
    with socket.create_connection(("127.0.0.1", operator.ports()["control"]), timeout=5) as plain:
        plain.sendall(b"POST /v1/sync HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)


def test_metrics_count_what_was_answered(operator: OperatorProcess, worker: Any) -> None:
    text = operator.get("metrics", "/metrics")[1]
    assert 'holdfast_sync_requests_total{code="401"}' in text
    assert "holdfast_leader 1.0" in text
    assert f'holdfast_job_attempt{{name="train",namespace="{worker.metadata.namespace}"}}' in text


def test_the_token_is_in_no_log(operator: OperatorProcess, worker: Any, token_of: Callable[..., str]) -> None:
    token = token_of(worker)
    operator.sync(token, BAD["report.phase"])
    signature = token.rsplit(".", 1)[1]
    assert signature not in operator.log.read_text()


def test_a_new_certificate_is_taken_and_a_broken_one_is_not(operator: OperatorProcess) -> None:
    folder = operator.folder / "tls"
    before = fingerprint(operator.connect())
    old_ca = (folder / "ca.crt").read_text()
    self_signed(folder)  # a key that belongs to no certificate here
    until(lambda: operator.logged("keeping the old certificate"), 15, "the old certificate is kept")
    assert fingerprint(operator.connect()) == before
    authority = new_authority("the next authority")
    write_certificate(authority, folder)
    (folder / "ca.crt").write_text(old_ca + authority.pem)
    until(lambda: _shows_new(operator, before), 15, "the new certificate")
    expiry = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).not_valid_after_utc
    text = operator.get("metrics", "/metrics")[1]
    (shown,) = re.findall(rf"^{Metric.CERTIFICATE_EXPIRY} (\S+)$", text, re.MULTILINE)
    assert float(shown) == expiry.timestamp()
    assert operator.get("health", "/healthz")[0] == 200


def _shows_new(operator: OperatorProcess, before: bytes) -> bool:
    try:
        return fingerprint(operator.connect()) != before
    except ssl.SSLError:
        return False
