"""Objects of the API server as small frozen facts: what is read of them, what is taken for nothing, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from holdfast_contract import keys
from holdfast_contract.api import TrainingJob
from holdfast_operator.decide.children import avoided_nodes
from holdfast_operator.decide.facts import ContainerEnd, JobFact, NodeCondition, NodeFact, PodFact, Taint

NO_TIME: Final = "0001-01-01T00:00:00Z"


class SpecError(ValueError):
    """The API server accepted the job, but the operator's models refuse its spec."""


def parse_job(raw: Mapping[str, Any]) -> JobFact:
    """The job object, checked with the models from which the CRD is generated. Raises SpecError."""
    try:
        job = TrainingJob.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SpecError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    meta = job.metadata
    if meta.creation_timestamp is None:
        raise SpecError("`metadata.creationTimestamp` is required but not set: only stored jobs can be reconciled")
    return JobFact(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        created_at=meta.creation_timestamp,
        spec=job.spec,
        status=job.status,
        deleted_at=meta.deletion_timestamp,
        has_finalizer=keys.FINALIZER in meta.finalizers,
    )


def pod_fact(raw: Mapping[str, Any], job_uid: str) -> PodFact | None:
    """A pod of the job.

    Args:
        raw: the pod as the API server has it.
        job_uid: UID of the job that must own it.

    Returns:
        None if the job does not own the pod, or if its labels are not the operator's.
    """
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    owned = any(o.get("uid") == job_uid and o.get("controller") for o in meta.get("ownerReferences", []))
    found = meta.get("labels", {})
    index, attempt = found.get(keys.LABEL_REPLICA_INDEX, ""), found.get(keys.LABEL_CREATED_IN_ATTEMPT, "")
    if not owned or not _is_number(index) or not _is_number(attempt):
        return None
    trainer = _trainer_status(status)
    return PodFact(
        name=meta["name"],
        uid=meta["uid"],
        index=int(index),
        created_in_attempt=int(attempt),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        deleted_at=_instant(meta.get("deletionTimestamp")),
        grace_seconds=meta.get("deletionGracePeriodSeconds"),
        disruption=_disruption(status),
        end=_container_end(trainer),
        waiting=_waiting(status, trainer),
        avoids=avoided_nodes(spec),  # those of the user's template included
    )


def _disruption(status: Mapping[str, Any]) -> str:
    """Reason of the condition DisruptionTarget, if it is True."""
    for condition in status.get("conditions", []):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason", ""))
    return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _trainer_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [c for c in status.get("containerStatuses", []) if c.get("name") == keys.TRAINER_CONTAINER]
    return found[0] if found else {}


def _container_end(trainer: Mapping[str, Any]) -> ContainerEnd | None:
    ended = trainer.get("state", {}).get("terminated")
    if ended is None:
        return None
    return ContainerEnd(
        exit_code=ended.get("exitCode", 0),
        signal=ended.get("signal", 0) or 0,
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
    )


def _waiting(status: Mapping[str, Any], trainer: Mapping[str, Any]) -> str:
    """Why the pod does not run yet, as the kubelet or the scheduler says."""
    waiting = trainer.get("state", {}).get("waiting", {})
    if waiting.get("reason"):
        return f"{waiting['reason']}: {waiting.get('message', '')}"[:256]
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"[:256]
    return ""


def node_fact(name: str, raw: Mapping[str, Any] | None) -> NodeFact:
    """A node; ``raw`` None means that it does not exist."""
    if raw is None:
        return NodeFact(name, exists=False)
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    taints = tuple(
        Taint(t["key"], t.get("value", ""), t.get("effect", ""), _instant(t.get("timeAdded")))
        for t in spec.get("taints", [])
    )
    conditions = tuple(
        NodeCondition(c["type"], c["status"], c.get("reason", ""), _instant(c.get("lastTransitionTime")))
        for c in status.get("conditions", [])
    )
    return NodeFact(
        name=name,
        unschedulable=bool(spec.get("unschedulable", False)),
        taints=taints,
        labels=meta.get("labels", {}),
        annotations=meta.get("annotations", {}),
        conditions=conditions,
    )


def _instant(text: str | None) -> datetime | None:
    return None if not text or text == NO_TIME else datetime.fromisoformat(text)
