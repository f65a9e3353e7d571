"""Notices that a pod or its node is about to go away: one table for all platforms, and how it is matched.

Only nodes with members of the job count. A label that only says what a node *is* (spot, preemptible) is not a notice.
A node that is silent already is not a notice either: see ``members.node_is_silent``. A notice that was remembered
still stands when its node is removed: that is how most announced ends happen.

A node that is up has not ended. So a deadline that had passed when the notice was first seen is wrong, and means the
job's default, counted from that moment (``status.notices[].noticedAt``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from holdfast_contract.api import NoticeMatcher, StandingNotice
from holdfast_operator.decide.facts import NodeFact, PodFact
from holdfast_operator.decide.members import JobView, Worker, node_is_gone


class Urgency(enum.Enum):
    """How the operator answers a notice."""

    IMMINENT = "imminent"  # save now, then replace the worker before the deadline
    PLANNED = "planned"  # save now, continue training, replace the worker once its new pod is ready
    ADVISORY = "advisory"  # save now, do not replace the worker: the node may recover


@dataclass(frozen=True)
class NoticePattern:
    """A pattern of the table.

    ``seconds``: time from the match until the node goes away; None: the job's default. ``instant``: the value is the
    Unix time at which the node goes away. ``open_ended``: nobody says when, if ever, the node goes away.
    """

    kind: Literal["taint", "label", "annotation", "condition"]
    key: str
    value: str | None = None  # a taint's, label's or annotation's value; a condition's status
    urgency: Urgency = Urgency.IMMINENT
    seconds: float | None = None
    instant: bool = False
    open_ended: bool = False
    effect: str | None = None
    reason: str | None = None
    name: str = ""

    @property
    def source(self) -> str:
        """The pattern's name in status and Events."""
        return self.name or f"{self.kind} {self.key}"


SPOT_SECONDS: Final = 120.0
UNHURRIED_SAVE_SECONDS: Final = 300.0
"""How long the save may take that answers a notice without a deadline."""
LATER_SECONDS: Final = 1.0
"""A deadline that differs from the remembered one by no more than this is the same one."""
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
    NoticePattern(
        "taint", "aws-node-termination-handler/scheduled-maintenance", urgency=Urgency.PLANNED, open_ended=True
    ),
    NoticePattern(
        "taint", "aws-node-termination-handler/rebalance-recommendation", urgency=Urgency.PLANNED, open_ended=True
    ),
    # Azure, Oracle, bare metal
    NoticePattern("taint", "remediator.kubernetes.azure.com/unschedulable", seconds=30.0),
    NoticePattern("condition", "VMEventScheduled", "True", seconds=30.0),
    NoticePattern("taint", "ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination"),
    NoticePattern("taint", "medik8s.io/drain"),
)
"""The built-in patterns. A cordon (spec.unschedulable) and a pod's deletion are read from their fields, below."""

CORDON: Final = NoticePattern("condition", "cordon", urgency=Urgency.PLANNED, open_ended=True, name="cordon")


@dataclass(frozen=True)
class Notice:
    """Some members are about to lose their node or pod. ``avoid``: the whole node goes away, so new pods avoid it."""

    node: str
    source: str
    urgency: Urgency
    deadline: datetime | None  # None: nobody says when
    noticed_at: datetime
    workers: tuple[int, ...]
    pod: str = ""  # set if only this pod ends

    @property
    def key(self) -> Key:
        """What makes it the same notice in the next pass."""
        return self.node, self.pod or self.source

    @property
    def avoid(self) -> bool:
        """Whether the whole node goes away, so that new pods avoid it."""
        return not self.pod

    def save_by(self, now: datetime) -> datetime:
        """When a save that is requested now to answer it must be committed.

        A node may outlive its advisory notice, and one without a deadline, for days and many attempts.
        """
        passed = self.urgency is Urgency.ADVISORY and self.deadline is not None and self.deadline <= now
        if self.deadline is None or passed:
            return now + timedelta(seconds=UNHURRIED_SAVE_SECONDS)
        return self.deadline


Key = tuple[str, str]


def key_of(known: StandingNotice) -> Key:
    """The key of a remembered notice."""
    return known.node, known.pod or known.source


def find(view: JobView) -> tuple[Notice, ...]:
    """All notices that concern current members. The first binds: earliest deadline first, advisory ones last."""
    known = {key_of(n): n for n in view.status.notices}
    found: list[Notice] = []
    for name, node in sorted(view.observed.nodes.items()):
        here = tuple(view.by_node.get(name, ()))
        if here and node_is_gone(node):
            found += (_remembered(n, here) for n in known.values() if n.node == name and not n.pod)
        elif here:
            found += (_of_node(view, node, pattern, added, here) for pattern, added in _patterns(view, node))
    for worker in view.workers:
        found += _of_pod(view, worker)
    last = datetime.max.replace(tzinfo=UTC)
    order = sorted(found, key=lambda n: (n.urgency is Urgency.ADVISORY, n.deadline or last, n.key))
    return tuple({n.key: n for n in reversed(order)}[key] for key in dict.fromkeys(n.key for n in order))


def doomed_nodes(view: JobView) -> frozenset[str]:
    """The nodes of members and former members that new pods must avoid: they are lost, or a notice says they go away."""
    leaving = {n.node for n in find(view) if n.avoid and n.urgency is not Urgency.ADVISORY}
    lost = {p.node for p in view.observed.pods if p.node and view.lost_node(p) is not None}
    return frozenset(leaving | lost)


def _remembered(known: StandingNotice, here: tuple[int, ...]) -> Notice:
    """A notice whose node has been removed since: it came true."""
    return Notice(known.node, known.source, Urgency(known.urgency), known.deadline, known.noticed_at, here)


def _of_node(
    view: JobView, node: NodeFact, pattern: NoticePattern, added: datetime | None, here: tuple[int, ...]
) -> Notice:
    known = next((n for n in view.status.notices if key_of(n) == (node.name, pattern.source)), None)
    noticed_at = known.noticed_at if known is not None else view.now
    deadline = _deadline(view, node, pattern, added, noticed_at)
    return Notice(node.name, pattern.source, pattern.urgency, deadline, noticed_at, here)


def _patterns(view: JobView, node: NodeFact) -> Iterator[tuple[NoticePattern, datetime | None]]:
    for pattern in (*CATALOGUE, *(_of_user(m) for m in view.spec.preemption.notices)):
        matched, added = _match(pattern, node)
        if matched:
            yield pattern, added
    if node.unschedulable:
        yield CORDON, None


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


def _deadline(
    view: JobView, node: NodeFact, pattern: NoticePattern, added: datetime | None, noticed_at: datetime
) -> datetime | None:
    """When the node goes away, as far as the node or the pattern says so."""
    if pattern.open_ended:
        return None
    usual = float(view.spec.preemption.default_deadline_seconds)
    seconds = pattern.seconds if pattern.seconds is not None else usual
    # Another machine's clock may only make the deadline earlier.
    stated = min(added or noticed_at, noticed_at) + timedelta(seconds=seconds)
    if pattern.instant:
        text = (node.labels if pattern.kind == "label" else node.annotations).get(pattern.key, "")
        if text.isascii() and text.isdigit() and len(text) <= 10:
            stated = datetime.fromtimestamp(int(text), UTC)
    return stated if stated > noticed_at else noticed_at + timedelta(seconds=usual)


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
    known = next((n for n in view.status.notices if key_of(n) == (pod.node, pod.name)), None)
    noticed_at = known.noticed_at if known is not None else view.now
    deadline = _pod_deadline(view, pod, left, noticed_at)
    if (
        known is not None
        and known.deadline is not None
        and known.deadline - deadline < timedelta(seconds=LATER_SECONDS)
    ):
        deadline = known.deadline  # a pod's end is never put off
    yield Notice(pod.node, source, Urgency.IMMINENT, deadline, noticed_at, (worker.index,), pod.name)


def _pod_deadline(view: JobView, pod: PodFact, agent_left: float | None, noticed_at: datetime) -> datetime:
    last = view.last_report(pod)
    if agent_left is not None and last is not None:  # the agent counts down itself: no common clock is needed
        left = min(agent_left, LONGEST_GRACE_SECONDS) - last.age_seconds
        return view.now + timedelta(seconds=max(0.0, left))
    usual = float(view.spec.preemption.default_deadline_seconds)
    grace = pod.grace_seconds if pod.grace_seconds is not None else usual
    latest = noticed_at + timedelta(seconds=grace)
    if pod.deleted_at is None:
        return latest
    if pod.deleted_at <= noticed_at:  # the API server's clock is behind, since the pod still runs
        return noticed_at + timedelta(seconds=min(grace, usual))
    return min(pod.deleted_at, latest)
