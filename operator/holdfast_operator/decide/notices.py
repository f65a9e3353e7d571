"""Notices that a pod or its node is about to go away: one table for all platforms, and how to read it.

Only nodes that host the job's members count. Labels that merely say what a node *is* (spot, preemptible) are no notice.
A node that is already silent is no notice either: see ``members.node_is_silent``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from holdfast_contract.api import NoticeMatcher
from holdfast_operator.decide.facts import NodeFact, PodFact
from holdfast_operator.decide.members import JobView, Worker


class Urgency(enum.Enum):
    """What a notice asks for."""

    IMMINENT = "imminent"  # save now, then replace the worker
    PLANNED = "planned"  # save now, train on, replace the worker when the deadline comes near
    ADVISORY = "advisory"  # save now, stay: the node may well recover


@dataclass(frozen=True)
class NoticePattern:
    """A pattern of the table. ``seconds``: how long after the match the node goes; None: the job's default.

    ``instant``: the value is the Unix time at which the node goes.
    """

    kind: Literal["taint", "label", "annotation", "condition"]
    key: str
    value: str | None = None  # a taint's, label's or annotation's value; a condition's status
    urgency: Urgency = Urgency.IMMINENT
    seconds: float | None = None
    instant: bool = False
    effect: str | None = None
    reason: str | None = None
    name: str = ""

    @property
    def source(self) -> str:
        """How status and Events name it."""
        return self.name or f"{self.kind} {self.key}"


SPOT_SECONDS: Final = 120.0
CORDON_SECONDS: Final = 300.0
LONGEST_GRACE_SECONDS: Final = 86400.0
"""The longest grace period that the API takes; a worker that claims more is not believed."""

CATALOGUE: Final = (
    # Kubernetes
    NoticePattern("taint", "node.kubernetes.io/memory-pressure", urgency=Urgency.ADVISORY),
    NoticePattern("taint", "node.kubernetes.io/disk-pressure", urgency=Urgency.ADVISORY),
    NoticePattern("taint", "node.kubernetes.io/pid-pressure", urgency=Urgency.ADVISORY),
    NoticePattern("condition", "GracefulNodeShutdownInProgress", "True"),
    NoticePattern("condition", "DrainInProgress", "True"),
    NoticePattern("condition", "MaintenanceInProgress", "True"),
    NoticePattern("condition", "MaintenancePlanned", "True", Urgency.PLANNED, seconds=3600.0),
    # Cluster Autoscaler, Karpenter
    NoticePattern("taint", "ToBeDeletedByClusterAutoscaler"),
    NoticePattern("taint", "karpenter.sh/disrupted", seconds=SPOT_SECONDS),
    NoticePattern("taint", "karpenter.sh/disruption", seconds=SPOT_SECONDS),
    # Google
    NoticePattern("taint", "cloud.google.com/impending-node-termination"),
    NoticePattern("label", "cloud.google.com/impending-node-termination"),
    NoticePattern("taint", "cloud.google.com/maintenance-window-started"),
    NoticePattern("label", "cloud.google.com/active-node-maintenance", "ONGOING"),
    NoticePattern("label", "cloud.google.com/scheduled-maintenance-time", urgency=Urgency.PLANNED, instant=True),
    # Amazon
    NoticePattern("taint", "aws-node-termination-handler/spot-itn", seconds=SPOT_SECONDS),
    NoticePattern("taint", "aws-node-termination-handler/asg-lifecycle-termination"),
    NoticePattern("taint", "aws-node-termination-handler/scheduled-maintenance", None, Urgency.PLANNED, CORDON_SECONDS),
    NoticePattern(
        "taint", "aws-node-termination-handler/rebalance-recommendation", None, Urgency.PLANNED, CORDON_SECONDS
    ),
    # Azure, Oracle, bare metal
    NoticePattern("taint", "remediator.kubernetes.azure.com/unschedulable", seconds=30.0),
    NoticePattern("condition", "VMEventScheduled", "True", seconds=30.0),
    NoticePattern("taint", "ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination"),
    NoticePattern("taint", "medik8s.io/drain"),
)
"""Built-in signs. A cordon (spec.unschedulable) and a pod's own end are read from their fields, below."""


@dataclass(frozen=True)
class Notice:
    """Some members are about to lose their place. ``avoid``: the whole node goes, so nothing new may land there."""

    node: str
    source: str
    urgency: Urgency
    deadline: datetime
    workers: tuple[int, ...]
    avoid: bool = True


def find(view: JobView) -> tuple[Notice, ...]:
    """All notices that concern current members, earliest deadline first."""
    found: list[Notice] = []
    for name, node in sorted(view.observed.nodes.items()):
        here = tuple(view.by_node.get(name, ()))
        if here:
            found += (_of_node(view, node, pattern, added, here) for pattern, added in _patterns(view, node))
    for worker in view.workers:
        found += _of_pod(view, worker)
    return tuple(sorted(found, key=lambda n: (n.deadline, n.node, n.source)))


def doomed_nodes(view: JobView) -> frozenset[str]:
    """The nodes of members and former members on which nothing new may land now: lost, or going away as a whole."""
    going = {n.node for n in find(view) if n.avoid and n.urgency is not Urgency.ADVISORY}
    lost = {p.node for p in view.observed.pods if p.node and view.lost_node(p) is not None}
    return frozenset(going | lost)


def _of_node(
    view: JobView, node: NodeFact, pattern: NoticePattern, added: datetime | None, here: tuple[int, ...]
) -> Notice:
    return Notice(node.name, pattern.source, pattern.urgency, _deadline(view, node, pattern, added), here)


def _patterns(view: JobView, node: NodeFact) -> Iterator[tuple[NoticePattern, datetime | None]]:
    for pattern in (*CATALOGUE, *(_own(m) for m in view.spec.preemption.notices)):
        matched, added = _match(pattern, node)
        if matched:
            yield pattern, added
    if node.unschedulable:
        yield NoticePattern("condition", "cordon", urgency=Urgency.PLANNED, seconds=CORDON_SECONDS, name="cordon"), None


def _own(matcher: NoticeMatcher) -> NoticePattern:
    seconds = matcher.deadline_seconds
    if matcher.taint is not None:
        taint = matcher.taint
        return NoticePattern("taint", taint.key, taint.value, seconds=seconds, effect=taint.effect, name=matcher.name)
    if matcher.condition is not None:
        wanted = matcher.condition
        return NoticePattern(
            "condition", wanted.type, wanted.status, seconds=seconds, reason=wanted.reason, name=matcher.name
        )
    pair, kind = (matcher.label, "label") if matcher.label is not None else (matcher.annotation, "annotation")
    if pair is None:
        raise ValueError(f"notices[name={matcher.name}]: found no pattern, allowed: exactly one")
    return NoticePattern(
        "label" if kind == "label" else "annotation", pair.key, pair.value, seconds=seconds, name=matcher.name
    )


def _match(pattern: NoticePattern, node: NodeFact) -> tuple[bool, datetime | None]:
    """Whether a node matches, and since when if the node says so."""
    if pattern.kind == "taint":
        for taint in node.taints:
            if (
                taint.key == pattern.key
                and pattern.value in {None, taint.value}
                and pattern.effect in {None, taint.effect}
            ):
                return True, taint.added_at
        return False, None
    if pattern.kind == "condition":
        for condition in node.conditions:
            same = (condition.type, condition.status) == (pattern.key, pattern.value)
            if same and pattern.reason in {None, condition.reason}:
                return True, condition.changed_at
        return False, None
    value = (node.labels if pattern.kind == "label" else node.annotations).get(pattern.key)
    return value is not None and pattern.value in {None, value}, None


def _deadline(view: JobView, node: NodeFact, pattern: NoticePattern, added: datetime | None) -> datetime:
    if pattern.instant:
        text = (node.labels if pattern.kind == "label" else node.annotations).get(pattern.key, "")
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return datetime.fromtimestamp(int(text), UTC)
    seconds = pattern.seconds if pattern.seconds is not None else float(view.spec.preemption.default_deadline_seconds)
    # Another machine's instant may only bring the deadline forward, and never before now.
    since = min(added, view.now) if added is not None else view.now
    return max(view.now, since + timedelta(seconds=seconds))


def _of_pod(view: JobView, worker: Worker) -> Iterator[Notice]:
    """The pod itself was told to end: deleted, evicted, or its agent got SIGTERM."""
    pod = worker.pod
    if pod is None or pod.finished:
        return
    last = view.last_report(pod)
    left = None if last is None else last.report.terminating_seconds_left
    if not pod.terminating and left is None and not pod.disruption:
        return
    source = f"pod {pod.disruption}" if pod.disruption else ("pod deletion" if pod.terminating else "pod SIGTERM")
    yield Notice(pod.node, source, Urgency.IMMINENT, _pod_deadline(view, pod, left), (worker.index,), avoid=False)


def _pod_deadline(view: JobView, pod: PodFact, agent_left: float | None) -> datetime:
    last = view.last_report(pod)
    if agent_left is not None and last is not None:  # the agent's own count-down needs no common clock
        left = min(agent_left, LONGEST_GRACE_SECONDS) - last.age_seconds
        return view.now + timedelta(seconds=max(0.0, left))
    grace = pod.grace_seconds if pod.grace_seconds is not None else float(view.spec.preemption.default_deadline_seconds)
    latest = view.now + timedelta(seconds=grace)
    return max(view.now, min(pod.deleted_at, latest)) if pod.deleted_at is not None else latest
