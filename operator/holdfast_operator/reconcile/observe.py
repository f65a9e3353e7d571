"""Everything that one decision about a job needs, in one frozen Observation: read live, or as the watch delivered it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from holdfast_contract import keys
from holdfast_contract.manifest import Owner
from holdfast_operator.decide.children import avoided_nodes
from holdfast_operator.decide.conditions import finished
from holdfast_operator.decide.facts import JobFact, LastReport, NodeFact, Observation, OtherOwner, PodFact
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Forbidden, KubeError
from holdfast_operator.interfaces import Clock, Manifest
from holdfast_operator.sync_endpoint.board import Board
from holdfast_operator.watch.cache import Snapshot, WatchCache
from holdfast_operator.watch.manifest_facts import SpecError, node_fact, parse_job, pod_fact

FEW_NODES: Final = 16
"""Up to this many nodes are read one by one; for more, one list is cheaper."""


def from_watch(known: Snapshot, board: Board, clock: Clock) -> Observation | None:
    """What the watch has delivered about a job, with the agents' last reports.

    Args:
        known: the job, its pods and their nodes, from the cache.
        board: the agents' last reports.
        clock: gives the reports their age.

    Returns:
        None if a decision needs more than the watch delivers: whether another owner of the run is alive.
    """
    last_reports = _last_reports(known.job, board, clock)
    pods = _without_users_choice(known.job, known.pods)
    if _other_owners(known.job, pods, last_reports):
        return None
    return Observation(known.job, pods, known.nodes, last_reports, term_seconds=_term_seconds(board, clock))


async def gather(kube: Kube, board: Board, clock: Clock, cache: WatchCache, raw: Manifest) -> Observation:
    """Read everything about a job, live.

    Args:
        kube: access to the API server: pods, nodes, another owner of the run.
        board: the agents' last reports.
        clock: gives the reports their age.
        cache: learns what is read.
        raw: the job, just read.

    Raises:
        SpecError: the job's spec is not valid.
        KubeError: the API server did not answer.
    """
    job = parse_job(raw)
    listed = await kube.list_pods(job.namespace, f"{keys.LABEL_JOB_UID}={job.uid}")
    cache.pods_read(job.namespace, job.name, job.uid, listed)
    found = (pod_fact(raw_pod, job.uid) for raw_pod in listed.items)
    pods = _without_users_choice(job, (fact for fact in found if fact is not None))
    last_reports = _last_reports(job, board, clock)
    nodes, other = await asyncio.gather(
        _nodes(kube, cache, {p.node for p in pods if p.node}), _other_owner(kube, job, pods, last_reports)
    )
    return Observation(job, pods, nodes, last_reports, other, term_seconds=_term_seconds(board, clock))


def _last_reports(job: JobFact, board: Board, clock: Clock) -> dict[str, LastReport]:
    received, read_at = board.reports(job.namespace, job.name), clock.monotonic()
    return {i.uid: LastReport(r.report, max(0.0, read_at - r.received_monotonic)) for i, r in received.items()}


def _term_seconds(board: Board, clock: Clock) -> float:
    """For how long agents can have reported to this operator."""
    return max(0.0, clock.monotonic() - board.opened_monotonic)


def _without_users_choice(job: JobFact, pods: Iterable[PodFact]) -> tuple[PodFact, ...]:
    """The pods; of the nodes that each avoids, only those that the operator excluded."""
    by_user = avoided_nodes(job.spec.template.to_manifest().get("spec", {}))
    return tuple(replace(p, avoids=p.avoids - by_user) if p.avoids else p for p in pods)


async def _nodes(kube: Kube, cache: WatchCache, names: Iterable[str]) -> dict[str, NodeFact]:
    ordered = sorted(set(names))
    try:
        if len(ordered) > FEW_NODES:
            known = {n["metadata"]["name"]: n for n in await kube.list_nodes()}
            found = [known.get(name) for name in ordered]
        else:
            found = await asyncio.gather(*(kube.get_node(name) for name in ordered))
    except Forbidden:
        return {}  # an installation without permission to read nodes relies on pods and agents alone
    for name, node in zip(ordered, found, strict=True):
        cache.node_read(name, node)
    return {name: node_fact(name, node) for name, node in zip(ordered, found, strict=True)}


def _other_owners(job: JobFact, pods: Iterable[PodFact], last_reports: Mapping[str, LastReport]) -> list[Owner]:
    """Other jobs that the run's owner record names, as worker 0 found it before the first attempt."""
    if job.status.active_attempt:
        return []
    first = [last_reports[p.uid].report.inspection for p in pods if p.index == 0 and p.uid in last_reports]
    return [i.owner for i in first if i is not None and i.owner is not None and i.owner.job_uid != job.uid]


async def _other_owner(
    kube: Kube, job: JobFact, pods: Iterable[PodFact], last_reports: Mapping[str, LastReport]
) -> OtherOwner | None:
    """Whether the job that the run's owner record names is still alive. A job that cannot be read counts as alive."""
    owners = _other_owners(job, pods, last_reports)
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
