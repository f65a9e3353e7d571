"""Reads everything that one decision about a job needs, live, into one frozen Observation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from holdfast_contract import keys
from holdfast_contract.api import TrainingJob
from holdfast_contract.manifest import Owner
from holdfast_operator.decide.children import avoided_nodes
from holdfast_operator.decide.conditions import finished
from holdfast_operator.decide.facts import (
    ContainerEnd,
    JobFact,
    LastReport,
    NodeCondition,
    NodeFact,
    Observation,
    OtherOwner,
    PodFact,
    Taint,
)
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Forbidden, KubeError
from holdfast_operator.interfaces import Clock, Manifest
from holdfast_operator.sync_endpoint.board import Board

FEW_NODES: Final = 16
"""Up to this many nodes are read one by one; for more, one list is cheaper."""
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


async def gather(kube: Kube, board: Board, clock: Clock, raw: Manifest) -> Observation:
    """Read everything about a job.

    Args:
        kube: access to the API server: pods, nodes, another owner of the run.
        board: the agents' last reports.
        clock: gives the reports their age.
        raw: the job, just read.

    Raises:
        SpecError: the job's spec is not valid.
        KubeError: the API server did not answer.
    """
    job = parse_job(raw)
    listed = await kube.list_pods(job.namespace, f"{keys.LABEL_JOB_UID}={job.uid}")
    avoided_by_user = avoided_nodes(job.spec.template.to_manifest().get("spec", {}))
    pods = tuple(fact for raw_pod in listed if (fact := pod_fact(raw_pod, job.uid, avoided_by_user)) is not None)
    received = board.reports(job.namespace, job.name)
    read_at = clock.monotonic()
    last_reports = {i.uid: LastReport(r.report, max(0.0, read_at - r.received_monotonic)) for i, r in received.items()}
    nodes, other = await asyncio.gather(
        _nodes(kube, {p.node for p in pods if p.node}), _other_owner(kube, job, pods, last_reports)
    )
    return Observation(job, pods, nodes, last_reports, other, max(0.0, read_at - board.opened_monotonic))


async def _nodes(kube: Kube, names: Iterable[str]) -> dict[str, NodeFact]:
    ordered = sorted(set(names))
    try:
        if len(ordered) > FEW_NODES:
            known = {n["metadata"]["name"]: n for n in await kube.list_nodes()}
            found = [known.get(name) for name in ordered]
        else:
            found = await asyncio.gather(*(kube.get_node(name) for name in ordered))
    except Forbidden:
        return {}  # an installation without permission to read nodes relies on pods and agents alone
    return {name: node_fact(name, node) for name, node in zip(ordered, found, strict=True)}


async def _other_owner(
    kube: Kube, job: JobFact, pods: Iterable[PodFact], last_reports: Mapping[str, LastReport]
) -> OtherOwner | None:
    """Whether the job that the run's owner record names is still alive. A job that cannot be read counts as alive."""
    if job.status.active_attempt:
        return None
    first = [last_reports[p.uid].report.inspection for p in pods if p.index == 0 and p.uid in last_reports]
    owners = [i.owner for i in first if i is not None and i.owner is not None and i.owner.job_uid != job.uid]
    return await _look_up(kube, owners[-1]) if owners else None


async def _look_up(kube: Kube, owner: Owner) -> OtherOwner:
    if not owner.namespace or not owner.name:
        return OtherOwner(owner.job_uid, alive=True)  # trained outside a cluster: nothing shows that it has ended
    try:
        raw = await kube.get_job(owner.namespace, owner.name)
        over = raw is None or raw["metadata"]["uid"] != owner.job_uid or finished(parse_job(raw).status)
    except (KubeError, SpecError):
        over = False
    return OtherOwner(owner.job_uid, alive=not over)


def pod_fact(raw: Mapping[str, Any], job_uid: str, avoided_by_user: frozenset[str] = frozenset()) -> PodFact | None:
    """A pod of the job.

    Args:
        raw: the pod as the API server has it.
        job_uid: UID of the job that must own it.
        avoided_by_user: nodes that the user's template excludes by name.

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
        avoids=avoided_nodes(spec) - avoided_by_user,
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
