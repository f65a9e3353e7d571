"""Notices that a pod or its node is about to go away: one table for all platforms, and how it is matched.

Only nodes with members of the job count. A label that only says what a node *is* (spot, preemptible) is not a notice.
A node that is silent already is not a notice either: see ``members.node_is_silent``.
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
    """How the operator answers a notice."""

    IMMINENT = "imminent"  # save now, then replace the worker
    PLANNED = "planned"  # save now, continue training, replace the worker when the deadline is near
    ADVISORY = "advisory"  # save now, do not replace the worker: the node may recover


@dataclass(frozen=True)
class NoticePattern:
    """A pattern of the table.

    ``seconds``: time from the match until the node goes away; None: the job's default. ``instant``: the value is the
    Unix time at which the node goes away.
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
        """The pattern's name in status and Events."""
        return self.name or f"{self.kind} {self.key}"


SPOT_SECONDS: Final = 120.0
CORDON_SECONDS: Final = 300.0
LONGEST_GRACE_SECONDS: Final = 86400.0
"""The longest grace period that the API takes; longer times of an agent are cut."""

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
"""The built-in patterns. A cordon (spec.unschedulable) and a pod's deletion are read from their fields, below."""


@dataclass(frozen=True)
class Notice:
    """Some members are about to lose their node or pod. ``avoid``: the whole node goes away, so new pods avoid it."""

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
    """The nodes of members and former members that new pods must avoid: they are lost, or a notice says they go away."""
    leaving = {n.node for n in find(view) if n.avoid and n.urgency is not Urgency.ADVISORY}
    lost = {p.node for p in view.observed.pods if p.node and view.lost_node(p) is not None}
    return frozenset(leaving | lost)


def _of_node(
    view: JobView, node: NodeFact, pattern: NoticePattern, added: datetime | None, here: tuple[int, ...]
) -> Notice:
    return Notice(node.name, pattern.source, pattern.urgency, _deadline(view, node, pattern, added), here)


def _patterns(view: JobView, node: NodeFact) -> Iterator[tuple[NoticePattern, datetime | None]]:
    for pattern in (*CATALOGUE, *(_of_user(m) for m in view.spec.preemption.notices)):
        matched, added = _match(pattern, node)
        if matched:
            yield pattern, added
    if node.unschedulable:
        yield NoticePattern("condition", "cordon", urgency=Urgency.PLANNED, seconds=CORDON_SECONDS, name="cordon"), None


def _of_user(matcher: NoticeMatcher) -> NoticePattern:
    """The pattern of an entry of spec.preemption.notices."""
    seconds = matcher.deadline_seconds
    if matcher.taint is not None:
        taint = matcher.taint
        return NoticePattern("taint", taint.key, taint.value, seconds=seconds, effect=taint.effect, name=matcher.name)
    if matcher.condition is not None:
        condition = matcher.condition
        return NoticePattern(
            "condition", condition.type, condition.status, seconds=seconds, reason=condition.reason, name=matcher.name
        )
    pair, kind = (matcher.label, "label") if matcher.label is not None else (matcher.annotation, "annotation")
    if pair is None:
        raise ValueError(f"notices[name={matcher.name}]: one of taint, condition, label, annotation is required")
    return NoticePattern(
        "label" if kind == "label" else "annotation", pair.key, pair.value, seconds=seconds, name=matcher.name
    )


def _match(pattern: NoticePattern, node: NodeFact) -> tuple[bool, datetime | None]:
    """Whether the node matches, and since when, if the node says so."""
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
    # Another machine's clock may only make the deadline earlier, and never earlier than now.
    since = min(added, view.now) if added is not None else view.now
    return max(view.now, since + timedelta(seconds=seconds))


def _of_pod(view: JobView, worker: Worker) -> Iterator[Notice]:
    """The pod itself is about to end: it is deleted or evicted, or its agent received SIGTERM."""
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
    if agent_left is not None and last is not None:  # the agent counts down itself: no common clock is needed
        left = min(agent_left, LONGEST_GRACE_SECONDS) - last.age_seconds
        return view.now + timedelta(seconds=max(0.0, left))
    grace = pod.grace_seconds if pod.grace_seconds is not None else float(view.spec.preemption.default_deadline_seconds)
    latest = view.now + timedelta(seconds=grace)
    return max(view.now, min(pod.deleted_at, latest)) if pod.deleted_at is not None else latest
