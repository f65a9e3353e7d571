"""Why an attempt ended: the cause of each worker's end, and which worker ended first (the culprit)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from holdfast_contract.exits import FOLLOWER_CODES, ExitCode
from holdfast_contract.reasons import Cause
from holdfast_contract.sync import TrainerPhase
from holdfast_operator.decide.facts import PodFact
from holdfast_operator.decide.members import SILENT_SECONDS, JobView, Worker

SETTLE_SECONDS: Final = 0.5
"""How long a killed trainer (137, 143) is not yet the culprit: the report of another rank's end may be on its way."""
CULPRIT_SECONDS: Final = 60.0
"""How long a trainer that aborted (134, peer lost) is not yet the culprit: a lost node is noticed only after this time."""

_ABORTED: Final = frozenset({int(ExitCode.PEER_LOST), 134})
_STOPPED: Final = frozenset({int(ExitCode.SAVED), int(ExitCode.NOT_SAVED)})

_BY_CODE: Final[Mapping[int, Cause]] = MappingProxyType(
    {
        ExitCode.SAVED: Cause.PREEMPTION,  # it received SIGTERM: the platform reclaims the node or the pod
        ExitCode.NOT_SAVED: Cause.PREEMPTION,
        ExitCode.ORPHANED: Cause.ORPHANED,
        ExitCode.SUPERSEDED: Cause.POD_LOST,
        ExitCode.STORAGE: Cause.STORAGE_ERROR,
        ExitCode.PEER_LOST: Cause.UNKNOWN,
        ExitCode.HANG: Cause.HANG,
    }
)
_BY_DISRUPTION: Final[Mapping[str, Cause]] = MappingProxyType(
    {
        "PreemptionByScheduler": Cause.PREEMPTION,
        "DeletionByTaintManager": Cause.PREEMPTION,
        "EvictionByEvictionAPI": Cause.EVICTED,
        "TerminationByKubelet": Cause.EVICTED,
        "DeletionByPodGC": Cause.NODE_LOST,
    }
)
_BY_POD_REASON: Final[Mapping[str, Cause]] = MappingProxyType(
    {
        "Evicted": Cause.EVICTED,
        "NodeShutdown": Cause.PREEMPTION,
        "Terminated": Cause.PREEMPTION,
        "Shutdown": Cause.PREEMPTION,
        "Preempting": Cause.PREEMPTION,
        "NodeLost": Cause.NODE_LOST,
    }
)
_REJECTED: Final = frozenset(
    {
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
        "SMTAlignmentError",
        "InvalidNodeInfo",
        "PodFeatureUnsupported",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
    }
)
"""Reasons of a kubelet that does not admit a pod, besides OutOfcpu, OutOfmemory, OutOfpods ..."""


@dataclass(frozen=True)
class Evidence:
    """What is observed of one worker whose part in the attempt has ended. The strongest evidence comes first."""

    node_lost: bool = False
    disruption: str = ""
    pod_reason: str = ""
    terminating: bool = False
    absent: bool = False
    agent_cause: Cause | None = None
    container_reason: str = ""
    exit_code: int | None = None
    pod_phase: str = ""


def classify(evidence: Evidence) -> Cause:
    """The cause of an end. Every evidence has one: without any clue it is Unknown, which counts against the budget."""
    if evidence.node_lost:
        return Cause.NODE_LOST
    if evidence.disruption:
        return _BY_DISRUPTION.get(evidence.disruption, Cause.EVICTED)
    if evidence.pod_reason in _BY_POD_REASON:
        return _BY_POD_REASON[evidence.pod_reason]
    if evidence.pod_reason in _REJECTED or evidence.pod_reason.startswith("OutOf"):
        return Cause.EVICTED
    if evidence.agent_cause is not None:
        return evidence.agent_cause
    if evidence.container_reason == "OOMKilled":
        return Cause.OUT_OF_MEMORY
    if evidence.terminating:
        return Cause.PREEMPTION
    if evidence.absent:
        return Cause.POD_LOST
    return _by_code(evidence.exit_code)


def _by_code(code: int | None) -> Cause:
    if code is None or code == 0:
        return Cause.UNKNOWN
    return _BY_CODE.get(code, Cause.FAILURE)


@dataclass(frozen=True)
class End:
    """The end of one worker's part in the active attempt."""

    worker: Worker
    evidence: Evidence
    cause: Cause
    age_seconds: float = 0.0
    last_lines: str = ""

    @property
    def code(self) -> int | None:
        """Exit code of the trainer; if it is unknown, that of the container."""
        return self.evidence.exit_code

    @property
    def done(self) -> bool:
        """Whether this worker finished training."""
        counts = self.cause in {Cause.UNKNOWN, Cause.PREEMPTION}  # deleting a finished pod does no harm
        return self.code == int(ExitCode.DONE) and counts

    @property
    def stopped(self) -> bool:
        """Whether the trainer ended because it was asked to stop."""
        return self.code in _STOPPED

    @property
    def saved(self) -> bool:
        """Whether the trainer saved its last step before it ended on request."""
        return self.code == int(ExitCode.SAVED)

    @property
    def aborted(self) -> bool:
        """Whether the trainer aborted, which only follows another rank's end."""
        return self.code in _ABORTED and self.cause in {Cause.FAILURE, Cause.UNKNOWN}

    @property
    def follows(self) -> bool:
        """Whether this end may be the consequence of another rank's end."""
        return self.code in FOLLOWER_CODES and self.cause in {Cause.FAILURE, Cause.UNKNOWN}

    @property
    def pod_is_gone(self) -> bool:
        """Whether the worker needs a new pod."""
        pod = self.worker.pod
        return pod is None or pod.finished or pod.terminating or self.evidence.node_lost

    @property
    def sentence(self) -> str:
        """What happened, for conditions and Events."""
        pod, index = self.worker.pod, self.worker.index
        if pod is None:
            return f"the pod of worker {index} no longer exists"
        if self.evidence.node_lost:
            return f"node {pod.node} is lost, and worker {index} with it"
        place = f" on node {pod.node}" if pod.node else ""
        if self.code is None:
            reason = self.evidence.pod_reason or self.evidence.pod_phase
            return f"pod {pod.name} of worker {index}{place} ended ({reason})"
        stopped = {int(ExitCode.SAVED): " (stopped and saved)", int(ExitCode.NOT_SAVED): " (stopped without a save)"}
        return f"the trainer of worker {index}{place} exited with code {self.code}{stopped.get(self.code, '')}"


def ends(view: JobView) -> tuple[End, ...]:
    """The ends of all workers whose part in the active attempt is over, in the order of their index."""
    return tuple(end for worker in view.workers for end in _end_of(view, worker))


def _end_of(view: JobView, worker: Worker) -> Iterator[End]:
    pod = worker.pod
    if pod is None:
        evidence = Evidence(absent=True)
        yield End(worker, evidence, classify(evidence))
        return
    last = view.last_report(pod)
    report = last.report if last is not None else None
    reported = report.exit if report is not None and report.phase is TrainerPhase.EXITED else None
    if reported is not None and reported.attempt != view.status.active_attempt:
        reported = None
    lost = view.lost_node(pod) is not None
    if not (lost or pod.finished or reported is not None):
        return
    evidence = _evidence(pod, lost=lost)
    if reported is not None:
        evidence = replace(evidence, exit_code=reported.code, agent_cause=reported.cause)
    lines = reported.last_lines if reported is not None else (pod.end.message if pod.end else "")
    yield End(worker, evidence, classify(evidence), last.age_seconds if last else 0.0, lines)


def _evidence(pod: PodFact, *, lost: bool) -> Evidence:
    code = pod.end.exit_code if pod.end is not None else None
    if code is None and pod.phase == "Succeeded":
        code = 0
    return Evidence(
        node_lost=lost,
        disruption=pod.disruption,
        pod_reason=pod.reason,
        terminating=pod.terminating,
        container_reason=pod.end.reason if pod.end is not None else "",
        exit_code=code,
        pod_phase=pod.phase,
    )


def culprit(found: tuple[End, ...]) -> End:
    """The first end: one that follows no other before one that may; among equals, the one reported longest ago."""
    return min(found, key=lambda e: (e.follows, e.aborted, -e.age_seconds, e.worker.index))


def open_seconds(view: JobView, found: tuple[End, ...]) -> float:
    """Seconds to wait before the culprit among these ends may be named; 0: now."""
    first = culprit(found)
    if not first.follows or len(found) == view.spec.replicas:
        return 0.0
    limit = CULPRIT_SECONDS if first.aborted and not _others_live(view, found) else SETTLE_SECONDS
    since = view.status.end_seen_at
    waited = (view.now - since).total_seconds() if since is not None else 0.0
    return max(0.0, limit - waited, _unheard_seconds(view, found))


def _unheard_seconds(view: JobView, found: tuple[End, ...]) -> float:
    """Seconds in which an agent that has not yet reported to this operator may still do so."""
    ended = {e.worker.index for e in found}
    unheard = any(view.last_report(w.pod) is None for w in view.workers if w.index not in ended)
    return max(0.0, SILENT_SECONDS - view.observed.term_seconds) if unheard else 0.0


def _others_live(view: JobView, found: tuple[End, ...]) -> bool:
    """Whether every worker that has not ended has reported since the first end was seen."""
    since = view.status.end_seen_at
    if since is None:
        return False
    ended = {e.worker.index for e in found}
    age = (view.now - since).total_seconds()
    rest = [view.last_report(w.pod) for w in view.workers if w.index not in ended]
    return all(h is not None and h.age_seconds < age for h in rest)
