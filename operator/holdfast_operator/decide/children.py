"""The pods of a job: names, labels, and the manifest that is made from the user's template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_contract import defaults, keys
from holdfast_operator.decide.actions import CreatePod
from holdfast_operator.decide.facts import JobFact


@dataclass(frozen=True)
class ControlSettings:
    """How agents reach the control endpoint: its URL, and the CA certificates (PEM) that they trust.

    ``orphan_seconds``: how long an agent without a trainer tries to reach the endpoint before it exits.
    """

    url: str
    ca_pem: str
    orphan_seconds: int = defaults.ORPHAN_SECONDS


def pod_name(job: str, index: int, attempt: int) -> str:
    """The only name that this worker's pod of this attempt can have.

    Args:
        job: the job's name.
        index: the worker's index.
        attempt: the attempt in which the pod is created.
    """
    return f"{job}-{index}-{attempt}"


def labels(job: JobFact, index: int, attempt: int) -> dict[str, str]:
    """Labels of a worker's pod.

    Args:
        job: the job.
        index: the worker's index.
        attempt: the attempt in which the pod is created.
    """
    return {
        keys.LABEL_JOB_NAME: job.name,
        keys.LABEL_JOB_UID: job.uid,
        keys.LABEL_REPLICA_INDEX: str(index),
        keys.LABEL_CREATED_IN_ATTEMPT: str(attempt),
        keys.LABEL_MANAGED_BY: keys.MANAGED_BY,
    }


def pod(job: JobFact, create: CreatePod, control: ControlSettings) -> dict[str, Any]:
    """Manifest of a worker's pod: the user's template, with the agent in front of the trainer's command.

    Args:
        job: the job.
        create: worker, attempt, and nodes to avoid.
        control: how the agent reaches the control endpoint.
    """
    template = job.spec.template.to_manifest()
    metadata, spec = template.get("metadata", {}), template["spec"]
    spec["restartPolicy"] = "Never"
    spec.setdefault("terminationGracePeriodSeconds", defaults.GRACE_SECONDS)
    spec.setdefault("automountServiceAccountToken", False)  # training needs no permission in the cluster
    spec["volumes"] = [*spec.get("volumes", []), *_volumes()]
    for container in spec["containers"]:
        if container["name"] == keys.TRAINER_CONTAINER:
            _inject(container, job, create, control, grace_seconds=spec["terminationGracePeriodSeconds"])
    if create.avoid_nodes:
        _avoid(spec, create.avoid_nodes)
    if create.shun_nodes:
        _shun(spec, create.shun_nodes)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": pod_name(job.name, create.index, create.attempt),
            "namespace": job.namespace,
            "labels": {**metadata.get("labels", {}), **labels(job, create.index, create.attempt)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def owner_reference(job: JobFact) -> dict[str, Any]:
    """The owner reference by which the garbage collector removes an object together with the job."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _inject(
    container: dict[str, Any], job: JobFact, create: CreatePod, control: ControlSettings, *, grace_seconds: int
) -> None:
    container["command"] = ["python", "-m", keys.AGENT_MODULE, "--", *container["command"]]
    container["env"] = [*container.get("env", []), *_env(job, create, control, grace_seconds)]
    if path := container.get("terminationMessagePath"):
        container["env"].append({"name": keys.ENV_TERMINATION_LOG, "value": path})
    container["volumeMounts"] = [
        *container.get("volumeMounts", []),
        {"name": keys.RUNTIME_VOLUME, "mountPath": keys.RUNTIME_MOUNT},
        {"name": keys.TOKEN_VOLUME, "mountPath": keys.TOKEN_MOUNT, "readOnly": True},
    ]


def _env(job: JobFact, create: CreatePod, control: ControlSettings, grace_seconds: int) -> list[dict[str, Any]]:
    checkpoint = job.spec.checkpoint
    policy = checkpoint.model_dump(mode="json", by_alias=True, exclude_none=True, include={"every", "keep", "healthy"})
    values = {
        keys.ENV_JOB_NAME: job.name,
        keys.ENV_JOB_NAMESPACE: job.namespace,
        keys.ENV_JOB_UID: job.uid,
        keys.ENV_REPLICA_INDEX: str(create.index),
        keys.ENV_REPLICAS: str(job.spec.replicas),
        keys.ENV_CONTROL_URL: control.url,
        keys.ENV_CONTROL_CA: control.ca_pem,
        keys.ENV_TOKEN_FILE: f"{keys.TOKEN_MOUNT}/{keys.TOKEN_FILE_NAME}",
        keys.ENV_GRACE_SECONDS: str(grace_seconds),
        keys.ENV_ORPHAN_SECONDS: str(control.orphan_seconds),
        keys.ENV_HANG_STEP_SECONDS: str(job.spec.hang.step_seconds),
        keys.ENV_HANG_START_SECONDS: str(job.spec.hang.start_seconds),
        keys.ENV_CHECKPOINT_PATH: checkpoint.path,
        keys.ENV_RUN: job.run,
        keys.ENV_CHECKPOINT_POLICY: json.dumps(policy, separators=(",", ":")),
    }
    # A literal dollar sign would start a reference to another variable.
    plain: list[dict[str, Any]] = [{"name": k, "value": v.replace("$", "$$")} for k, v in values.items()]
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [*plain, {"name": keys.ENV_POD_IP, "valueFrom": own_address}]


def _volumes() -> list[dict[str, Any]]:
    token = {
        "serviceAccountToken": {
            "path": keys.TOKEN_FILE_NAME,
            "audience": keys.TOKEN_AUDIENCE,
            "expirationSeconds": keys.TOKEN_EXPIRATION_SECONDS,
        }
    }
    return [
        {"name": keys.RUNTIME_VOLUME, "emptyDir": {}},
        {"name": keys.TOKEN_VOLUME, "projected": {"sources": [token]}},
    ]


def avoided_nodes(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """The nodes that a pod's spec excludes by name, by ``_avoid`` or by the user in the same form."""
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    fields = [field for term in terms for field in term.get("matchFields") or []]
    named = [f for f in fields if (f.get("key"), f.get("operator")) == ("metadata.name", "NotIn")]
    return frozenset(node for field in named for node in field.get("values") or [])


def _avoid(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Exclude these nodes, in addition to the user's affinity. Its terms are alternatives, so each term gets them."""
    affinity = spec.setdefault("affinity", {})
    required = affinity.setdefault("nodeAffinity", {}).setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.setdefault("nodeSelectorTerms", [{}])
    # By name, one per requirement as the API requires: the host name label may be absent or differ.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    for term in terms:
        term["matchFields"] = [*term.get("matchFields", []), *fields]


def _shun(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Prefer other nodes than these, in addition to the user's preferences."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    term = {"weight": 100, "preference": {"matchFields": fields}}
    known = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*known, term]
