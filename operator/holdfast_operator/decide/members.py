"""Who is a worker of the job now: membership by index, pod and attempt.

attempt  activeAttempt  transition         members                          replacements
0        0              -                  newest pod per index             -
n        n              -                  newest pod created in <= n       -
n+1      n              training: true     newest pod created in <= n       pods created in n+1
n+1      n              training: false    newest pod created in <= n+1     -
n+2      n              - (called off)     newest pod created in <= n       -
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_contract.sync import HOLD_SECONDS, TrainerPhase
from holdfast_operator.decide.facts import JobFact, LastReport, NodeFact, Observation, PodFact

NODE_LOST_SECONDS: Final = 10.0
"""How long a node may be not ready before its pods count as lost (a kubelet that restarts is back sooner)."""
SILENT_SECONDS: Final = HOLD_SECONDS + 5.0
"""After how long without a word an agent counts as silent: the longest hold, and some time for a slow answer."""
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True)
class Worker:
    """One index of the job: its member pod, if there is one, and the pod that is prepared to replace it."""

    index: int
    pod: PodFact | None
    incoming: PodFact | None = None


@dataclass(frozen=True)
class JobView:
    """An observation, the time, and what follows from both. Read-only and cheap to derive anew for another status."""

    observed: Observation
    now: datetime
    status: TrainingJobStatus

    @classmethod
    def of(cls, observed: Observation, now: datetime) -> JobView:
        """The view under the status that is stored."""
        return cls(observed, now, observed.job.status)

    def under(self, status: TrainingJobStatus) -> JobView:
        """The same facts, seen under another status."""
        return replace(self, status=status)

    @property
    def job(self) -> JobFact:
        """The job object."""
        return self.observed.job

    @property
    def spec(self) -> TrainingJobSpec:
        """What the user asks for."""
        return self.observed.job.spec

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """One entry per index, in order."""
        return tuple(self._worker(index) for index in range(self.spec.replicas))

    @cached_property
    def _by_index(self) -> dict[int, list[PodFact]]:
        """Pods of each index, oldest first."""
        found: dict[int, list[PodFact]] = {}
        for pod in sorted(self.observed.pods, key=lambda p: p.created_in_attempt):
            found.setdefault(pod.index, []).append(pod)
        return found

    @cached_property
    def by_node(self) -> dict[str, list[int]]:
        """Indices of the members that live on each node."""
        found: dict[str, list[int]] = {}
        for worker in self.workers:
            if worker.pod is not None and worker.pod.node and not worker.pod.finished:
                found.setdefault(worker.pod.node, []).append(worker.index)
        return found

    def _worker(self, index: int) -> Worker:
        pods = self._by_index.get(index, [])
        transition = self.status.transition
        if transition is None or transition.training:
            limit = self.status.active_attempt or self.status.attempt
        else:
            limit = transition.attempt
            if index in transition.workers:  # this one is replaced: a pod of an earlier attempt is no longer a member
                pods = [p for p in pods if p.created_in_attempt >= transition.attempt]
        member = next((p for p in reversed(pods) if p.created_in_attempt <= limit), None)
        incoming = None
        if transition is not None and transition.training and index in transition.workers:
            incoming = next((p for p in reversed(pods) if p.created_in_attempt == transition.attempt), None)
        return Worker(index, member, incoming)

    @property
    def preparing(self) -> bool:
        """Whether no attempt trains now because the next one is being prepared."""
        return self.status.transition is not None and not self.status.transition.training

    def last_report(self, pod: PodFact | None) -> LastReport | None:
        """The last report of a pod's agent."""
        return None if pod is None else self.observed.last_reports.get(pod.uid)

    def has_reported_lately(self, pod: PodFact | None) -> bool:
        """Whether a pod's agent has spoken lately: each asks again at least once per hold."""
        last = self.last_report(pod)
        return last is not None and last.age_seconds < SILENT_SECONDS

    def lost_node(self, pod: PodFact) -> NodeFact | None:
        """The pod's node, if no process on it can be reached any more.

        A node whose kubelet is cut off from the API server is not lost while the pod's agent still speaks.
        """
        node = self.observed.nodes.get(pod.node)
        if node is None or not node_is_silent(node, self.now):
            return None
        return node if node_is_gone(node) or not self.has_reported_lately(pod) else None

    def usable(self, pod: PodFact | None) -> bool:
        """Whether a pod can carry the trainer of an attempt to come."""
        return pod is not None and not pod.finished and not pod.terminating and self.lost_node(pod) is None

    def reporting(self) -> Iterator[tuple[Worker, LastReport]]:
        """Members whose agents have reported, in order of index."""
        for worker in self.workers:
            last = self.last_report(worker.pod)
            if last is not None:
                yield worker, last

    @property
    def gang_ready(self) -> bool:
        """Whether every member can start a trainer now."""
        return all(self.usable(w.pod) and self.has_reported_lately(w.pod) for w in self.workers) and bool(
            self.workers[0].pod and self.workers[0].pod.ip
        )

    def training(self) -> Iterator[tuple[Worker, LastReport]]:
        """Members in which a trainer of the active attempt runs, by their own word."""
        live = {TrainerPhase.STARTING, TrainerPhase.RUNNING}
        for worker, last in self.reporting():
            alive = worker.pod is not None and not worker.pod.finished
            if alive and last.report.attempt == self.status.active_attempt and last.report.phase in live:
                yield worker, last


def node_is_gone(node: NodeFact) -> bool:
    """Whether the node was removed, or somebody vouches that it is off."""
    return not node.exists or any(t.key == OUT_OF_SERVICE_TAINT for t in node.taints)


def node_is_silent(node: NodeFact, now: datetime) -> bool:
    """Whether the node is gone or has not been ready for longer than a kubelet takes to restart."""
    ready = node.ready
    if node_is_gone(node):
        return True
    if ready is None or ready.status == "True":
        return False
    return ready.changed_at is None or (now - ready.changed_at).total_seconds() >= NODE_LOST_SECONDS


def node_in_doubt(view: JobView) -> bool:
    """Whether a node that hosts a pod is not ready, so that it may soon count as lost."""
    return any(n.ready is not None and n.ready.status != "True" for n in view.observed.nodes.values())
