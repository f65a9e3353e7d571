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
from holdfast_operator.decide.members import View, Worker


class Urgency(enum.Enum):
    """What a notice asks for."""

    IMMINENT = "imminent"  # save now, then move
    PLANNED = "planned"  # save now, train on, move when the deadline comes near
    ADVISORY = "advisory"  # save now, stay: the node may well recover


@dataclass(frozen=True)
class Sign:
    """A pattern of the table. ``seconds``: how long after the sign the node goes; None: the job's default.

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
    Sign("taint", "node.kubernetes.io/memory-pressure", urgency=Urgency.ADVISORY),
    Sign("taint", "node.kubernetes.io/disk-pressure", urgency=Urgency.ADVISORY),
    Sign("taint", "node.kubernetes.io/pid-pressure", urgency=Urgency.ADVISORY),
    Sign("condition", "GracefulNodeShutdownInProgress", "True"),
    Sign("condition", "DrainInProgress", "True"),
    Sign("condition", "MaintenanceInProgress", "True"),
    Sign("condition", "MaintenancePlanned", "True", Urgency.PLANNED, seconds=3600.0),
    # Cluster Autoscaler, Karpenter
    Sign("taint", "ToBeDeletedByClusterAutoscaler"),
    Sign("taint", "karpenter.sh/disrupted", seconds=SPOT_SECONDS),
    Sign("taint", "karpenter.sh/disruption", seconds=SPOT_SECONDS),
    # Google
    Sign("taint", "cloud.google.com/impending-node-termination"),
    Sign("label", "cloud.google.com/impending-node-termination"),
    Sign("taint", "cloud.google.com/maintenance-window-started"),
    Sign("label", "cloud.google.com/active-node-maintenance", "ONGOING"),
    Sign("label", "cloud.google.com/scheduled-maintenance-time", urgency=Urgency.PLANNED, instant=True),
    # Amazon
    Sign("taint", "aws-node-termination-handler/spot-itn", seconds=SPOT_SECONDS),
    Sign("taint", "aws-node-termination-handler/asg-lifecycle-termination"),
    Sign("taint", "aws-node-termination-handler/scheduled-maintenance", None, Urgency.PLANNED, CORDON_SECONDS),
    Sign("taint", "aws-node-termination-handler/rebalance-recommendation", None, Urgency.PLANNED, CORDON_SECONDS),
    # Azure, Oracle, bare metal
    Sign("taint", "remediator.kubernetes.azure.com/unschedulable", seconds=30.0),
    Sign("condition", "VMEventScheduled", "True", seconds=30.0),
    Sign("taint", "ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination"),
    Sign("taint", "medik8s.io/drain"),
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


def find(view: View) -> tuple[Notice, ...]:
    """All notices that concern current members, earliest deadline first."""
    found: list[Notice] = []
    for name, node in sorted(view.observed.nodes.items()):
        here = tuple(view.by_node.get(name, ()))
        if here:
            found += (_of_node(view, node, sign, added, here) for sign, added in _signs(view, node))
    for worker in view.workers:
        found += _of_pod(view, worker)
    return tuple(sorted(found, key=lambda n: (n.deadline, n.node, n.source)))


def doomed_nodes(view: View) -> frozenset[str]:
    """The nodes of members and former members on which nothing new may land now: lost, or going away as a whole."""
    going = {n.node for n in find(view) if n.avoid and n.urgency is not Urgency.ADVISORY}
    lost = {p.node for p in view.observed.pods if p.node and view.lost_node(p) is not None}
    return frozenset(going | lost)


def _of_node(view: View, node: NodeFact, sign: Sign, added: datetime | None, here: tuple[int, ...]) -> Notice:
    return Notice(node.name, sign.source, sign.urgency, _deadline(view, node, sign, added), here)


def _signs(view: View, node: NodeFact) -> Iterator[tuple[Sign, datetime | None]]:
    for sign in (*CATALOGUE, *(_own(m) for m in view.spec.preemption.notices)):
        matched, added = _match(sign, node)
        if matched:
            yield sign, added
    if node.unschedulable:
        yield Sign("condition", "cordon", urgency=Urgency.PLANNED, seconds=CORDON_SECONDS, name="cordon"), None


def _own(matcher: NoticeMatcher) -> Sign:
    seconds = matcher.deadline_seconds
    if matcher.taint is not None:
        taint = matcher.taint
        return Sign("taint", taint.key, taint.value, seconds=seconds, effect=taint.effect, name=matcher.name)
    if matcher.condition is not None:
        wanted = matcher.condition
        return Sign("condition", wanted.type, wanted.status, seconds=seconds, reason=wanted.reason, name=matcher.name)
    pair, kind = (matcher.label, "label") if matcher.label is not None else (matcher.annotation, "annotation")
    if pair is None:
        raise ValueError(f"notices[name={matcher.name}]: found no pattern, allowed: exactly one")
    return Sign("label" if kind == "label" else "annotation", pair.key, pair.value, seconds=seconds, name=matcher.name)


def _match(sign: Sign, node: NodeFact) -> tuple[bool, datetime | None]:
    """Whether a node shows the sign, and since when if the node says so."""
    if sign.kind == "taint":
        for taint in node.taints:
            if taint.key == sign.key and sign.value in {None, taint.value} and sign.effect in {None, taint.effect}:
                return True, taint.added_at
        return False, None
    if sign.kind == "condition":
        for condition in node.conditions:
            same = (condition.type, condition.status) == (sign.key, sign.value)
            if same and sign.reason in {None, condition.reason}:
                return True, condition.changed_at
        return False, None
    value = (node.labels if sign.kind == "label" else node.annotations).get(sign.key)
    return value is not None and sign.value in {None, value}, None


def _deadline(view: View, node: NodeFact, sign: Sign, added: datetime | None) -> datetime:
    if sign.instant:
        text = (node.labels if sign.kind == "label" else node.annotations).get(sign.key, "")
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return datetime.fromtimestamp(int(text), UTC)
    seconds = sign.seconds if sign.seconds is not None else float(view.spec.preemption.default_deadline_seconds)
    # Another machine's instant may only bring the deadline forward, and never before now.
    since = min(added, view.now) if added is not None else view.now
    return max(view.now, since + timedelta(seconds=seconds))


def _of_pod(view: View, worker: Worker) -> Iterator[Notice]:
    """The pod itself was told to end: deleted, evicted, or its agent got SIGTERM."""
    pod = worker.pod
    if pod is None or pod.finished:
        return
    heard = view.heard(pod)
    left = None if heard is None else heard.report.terminating_seconds_left
    if not pod.terminating and left is None and not pod.disruption:
        return
    source = f"pod {pod.disruption}" if pod.disruption else ("pod deletion" if pod.terminating else "pod SIGTERM")
    yield Notice(pod.node, source, Urgency.IMMINENT, _pod_deadline(view, pod, left), (worker.index,), avoid=False)


def _pod_deadline(view: View, pod: PodFact, agent_left: float | None) -> datetime:
    heard = view.heard(pod)
    if agent_left is not None and heard is not None:  # the agent's own count-down needs no common clock
        left = min(agent_left, LONGEST_GRACE_SECONDS) - heard.age_seconds
        return view.now + timedelta(seconds=max(0.0, left))
    grace = pod.grace_seconds if pod.grace_seconds is not None else float(view.spec.preemption.default_deadline_seconds)
    latest = view.now + timedelta(seconds=grace)
    return max(view.now, min(pod.deleted_at, latest)) if pod.deleted_at is not None else latest
