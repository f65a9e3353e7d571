"""Objects of the API server as facts: what is read, what is taken for nothing, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast_contract import keys
from holdfast_operator.watch import manifest_facts
from tests.support.cluster.manifests import training_job, with_value

OWNER = {"uid": "job-uid", "controller": True, "kind": keys.KIND, "name": "lm", "apiVersion": keys.API_VERSION}


def pod(**status: Any) -> dict[str, Any]:
    labels = {keys.LABEL_REPLICA_INDEX: "1", keys.LABEL_CREATED_IN_ATTEMPT: "4"}
    meta = {"name": "lm-1-4", "uid": "pod-uid", "labels": labels, "ownerReferences": [OWNER]}
    return {"metadata": meta, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.7", **status}}


def test_running_pod() -> None:
    fact = manifest_facts.pod_fact(pod(), "job-uid")
    assert fact is not None
    assert (fact.index, fact.created_in_attempt, fact.node, fact.ip) == (1, 4, "n1", "10.0.0.7")
    assert not fact.finished
    assert not fact.terminating


def test_ended_and_evicted_pod() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "last words"}}
    containers = [
        {"name": "side", "state": {"terminated": {"exitCode": 0}}},
        {"name": keys.TRAINER_CONTAINER, "state": ended},
    ]
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    fact = manifest_facts.pod_fact(
        pod(phase="Failed", reason="Evicted", containerStatuses=containers, conditions=disrupted), "job-uid"
    )
    assert fact is not None
    assert fact.end is not None
    assert (fact.end.exit_code, fact.end.reason, fact.end.message) == (137, "OOMKilled", "last words")
    assert (fact.reason, fact.disruption, fact.finished) == ("Evicted", "EvictionByEvictionAPI", True)


def test_pending_pod_says_why() -> None:
    waiting = {"name": keys.TRAINER_CONTAINER, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
    fact = manifest_facts.pod_fact(pod(phase="Pending", containerStatuses=[waiting]), "job-uid")
    assert fact is not None
    assert fact.waiting == "ImagePullBackOff: no"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.ownerReferences", []),
        ("metadata.ownerReferences", [{**OWNER, "uid": "the job before"}]),
        ("metadata.ownerReferences", [{**OWNER, "controller": False}]),
        ("metadata.labels", {keys.LABEL_REPLICA_INDEX: "x", keys.LABEL_CREATED_IN_ATTEMPT: "4"}),
        ("metadata.labels", {keys.LABEL_REPLICA_INDEX: "-1", keys.LABEL_CREATED_IN_ATTEMPT: "4"}),
        ("metadata.labels", {keys.LABEL_REPLICA_INDEX: "1"}),
    ],
)
def test_what_is_not_provably_ours_is_nothing_to_us(path: str, value: object) -> None:
    assert manifest_facts.pod_fact(with_value(pod(), path, value), "job-uid") is None


def test_node() -> None:
    at = "2026-01-02T03:04:05Z"
    raw = {
        "metadata": {"name": "n1", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": at}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": at}]},
    }
    fact = manifest_facts.node_fact("n1", raw)
    assert fact.unschedulable
    assert fact.taints[0].added_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert fact.ready is not None
    assert fact.ready.changed_at == fact.taints[0].added_at
    assert not manifest_facts.node_fact("n1", None).exists


def test_spec_that_an_older_definition_let_in_is_refused_with_its_field() -> None:
    raw = training_job("lm", namespace="ns")
    raw["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"}
    assert manifest_facts.parse_job(raw).spec.replicas == 2
    with pytest.raises(manifest_facts.SpecError, match="replicas"):
        manifest_facts.parse_job(with_value(raw, "spec.replicas", 0))
