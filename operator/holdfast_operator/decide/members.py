"""Which pod is which worker of the job now.

A worker is an index, 0 to replicas - 1. Every pod carries its index and the attempt that it was created in. The status
says which pods are members:

status.                                       members: per index, the       incoming pods
attempt  activeAttempt  transition            newest pod that was ...
n        0              none                  created in <= n               none                   before the first
n        n              none                  created in <= n               none                   n trains
n+1      n              training: true        created in <= n               created in > n         n+1 replaces pods
n+1      n              training: false       created in <= n+1 *           none                   n has ended
n+2      n              none                  created in <= n               none                   n+1 was cancelled

* A worker that ``transition.workers`` names needs a pod created in n+1: its older pods are not members any more.

Pods in ``status.calledOff`` are nobody's: they were created for a replacement that was called off.
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
"""How long a node may be not ready before its pods count as lost. A kubelet that restarts is ready again sooner."""
SILENT_SECONDS: Final = HOLD_SECONDS + 5.0
"""An agent that has not reported for this time counts as silent: the longest hold, and time for a slow answer."""
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True)
class Worker:
    """One index of the job: its member pod, if there is one, and the incoming pod that will replace it."""

    index: int
    pod: PodFact | None
    incoming: PodFact | None = None


@dataclass(frozen=True)
class JobView:
    """What the rules read: an observation, the time, and a status, with what follows from them. Read-only.

    The status is the stored one, or one that a decision has just made; ``under`` gives the same facts with another.
    """

    observed: Observation
    now: datetime
    status: TrainingJobStatus

    @classmethod
    def of(cls, observed: Observation, now: datetime) -> JobView:
        """The view with the stored status."""
        return cls(observed, now, observed.job.status)

    def under(self, status: TrainingJobStatus) -> JobView:
        """The same facts with another status."""
        return replace(self, status=status)

    @property
    def job(self) -> JobFact:
        """The job object."""
        return self.observed.job

    @property
    def spec(self) -> TrainingJobSpec:
        """The job's spec."""
        return self.observed.job.spec

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """The workers, in the order of their index."""
        return tuple(self._worker(index) for index in range(self.spec.replicas))

    @cached_property
    def _by_index(self) -> dict[int, list[PodFact]]:
        """Pods of each index, oldest first."""
        found: dict[int, list[PodFact]] = {}
        called_off = frozenset(self.status.called_off)
        for pod in sorted(self.observed.pods, key=lambda p: p.created_in_attempt):
            if pod.uid not in called_off:
                found.setdefault(pod.index, []).append(pod)
        return found

    @cached_property
    def by_node(self) -> dict[str, list[int]]:
        """Indices of the unfinished members on each node."""
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
            if index in transition.workers:  # a new pod replaces this worker: its older pods are not members any more
                pods = [p for p in pods if p.created_in_attempt >= transition.attempt]
        member = next((p for p in reversed(pods) if p.created_in_attempt <= limit), None)
        incoming = None
        if transition is not None and transition.training and index in transition.workers:
            incoming = next((p for p in reversed(pods) if p.created_in_attempt > self.status.active_attempt), None)
        return Worker(index, member, incoming)

    @property
    def preparing(self) -> bool:
        """Whether the next attempt is being prepared and no attempt trains meanwhile."""
        return self.status.transition is not None and not self.status.transition.training

    def last_report(self, pod: PodFact | None) -> LastReport | None:
        """The last report of the pod's agent, if there is one."""
        return None if pod is None else self.observed.last_reports.get(pod.uid)

    def has_reported_lately(self, pod: PodFact | None) -> bool:
        """Whether the pod's agent has reported lately: each agent reports at least once per hold."""
        last = self.last_report(pod)
        return last is not None and last.age_seconds < SILENT_SECONDS

    def silent_seconds(self, pod: PodFact | None) -> float:
        """For how long the pod's agent has not reported, as far as this operator can know: it leads since a while only."""
        last = self.last_report(pod)
        return self.observed.term_seconds if last is None else last.age_seconds

    def is_silent(self, pod: PodFact | None) -> bool:
        """Whether the pod's agent has been silent for too long. An agent that this operator may yet hear is not."""
        return self.silent_seconds(pod) >= SILENT_SECONDS

    def lost_node(self, pod: PodFact) -> NodeFact | None:
        """The pod's node, if it is lost: no process on it can be reached any more.

        A node whose kubelet is cut off from the API server is not lost while the pod's agent still reports.
        """
        node = self.observed.nodes.get(pod.node)
        if node is None or not node_is_silent(node, self.now):
            return None
        return node if node_is_gone(node) or self.is_silent(pod) else None

    def usable(self, pod: PodFact | None) -> bool:
        """Whether the pod can run a trainer of the next attempt."""
        return pod is not None and not pod.finished and not pod.terminating and self.lost_node(pod) is None

    def ready(self, pod: PodFact | None) -> bool:
        """Whether the pod can start a trainer now: it is usable, and its agent answers."""
        return self.usable(pod) and self.has_reported_lately(pod)

    def reporting(self) -> Iterator[tuple[Worker, LastReport]]:
        """Members whose agents have reported, in the order of their index."""
        for worker in self.workers:
            last = self.last_report(worker.pod)
            if last is not None:
                yield worker, last

    @property
    def gang_ready(self) -> bool:
        """Whether every member can start a trainer now."""
        return all(self.ready(w.pod) for w in self.workers) and bool(self.workers[0].pod and self.workers[0].pod.ip)

    def training(self) -> Iterator[tuple[Worker, LastReport]]:
        """Members that report a running trainer of the active attempt."""
        live = {TrainerPhase.STARTING, TrainerPhase.RUNNING}
        for worker, last in self.reporting():
            alive = worker.pod is not None and not worker.pod.finished
            if alive and last.report.attempt == self.status.active_attempt and last.report.phase in live:
                yield worker, last


def node_is_gone(node: NodeFact) -> bool:
    """Whether the node was removed, or carries the taint that declares it shut down."""
    return not node.exists or any(t.key == OUT_OF_SERVICE_TAINT for t in node.taints)


def node_is_silent(node: NodeFact, now: datetime) -> bool:
    """Whether the node is gone, or has not been ready for NODE_LOST_SECONDS."""
    ready = node.ready
    if node_is_gone(node):
        return True
    if ready is None or ready.status == "True":
        return False
    return ready.changed_at is None or (now - ready.changed_at).total_seconds() >= NODE_LOST_SECONDS


def node_in_doubt(view: JobView) -> bool:
    """Whether a node with a pod of the job is not ready, so that it may soon count as lost."""
    return any(n.ready is not None and n.ready.status != "True" for n in view.observed.nodes.values())
