"""What the operator sees in one pass, frozen: the only input of every decision besides the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_contract.identity import PodUid
from holdfast_contract.sync import Report


@dataclass(frozen=True)
class JobFact:
    """The job object. ``created_at`` and ``deleted_at`` are the API server's instants, cut to the second."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: datetime
    spec: TrainingJobSpec
    status: TrainingJobStatus
    deleted_at: datetime | None = None
    has_finalizer: bool = False

    @property
    def run(self) -> str:
        """Folder of the training run under the checkpoint path."""
        return self.spec.checkpoint.run or self.uid


@dataclass(frozen=True)
class ContainerEnd:
    """How the trainer container (its agent) ended, as the kubelet says."""

    exit_code: int
    signal: int = 0
    reason: str = ""  # OOMKilled, Error, Completed ...
    message: str = ""  # the termination message: the agent's last lines


@dataclass(frozen=True)
class PodFact:
    """One pod of the job, owned by it (others are never listed here)."""

    name: str
    uid: str
    index: int
    created_in_attempt: int
    phase: str = "Pending"  # Pending, Running, Succeeded, Failed, Unknown
    reason: str = ""  # status.reason: Evicted, NodeShutdown ...
    node: str = ""
    ip: str = ""
    deleted_at: datetime | None = None  # deletionTimestamp: when its grace ends
    grace_seconds: float | None = None  # deletionGracePeriodSeconds
    disruption: str = ""  # reason of condition DisruptionTarget, if that is true
    end: ContainerEnd | None = None
    waiting: str = ""  # why its container does not start, if the kubelet says so
    avoids: frozenset[str] = frozenset()  # nodes that the operator keeps it off, besides what the template asks for

    @property
    def finished(self) -> bool:
        """Whether no process of it runs any more."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def terminating(self) -> bool:
        """Whether its end was asked for."""
        return self.deleted_at is not None


@dataclass(frozen=True)
class Taint:
    """A taint of a node. ``added_at`` is the instant of whoever set it, if given."""

    key: str
    value: str = ""
    effect: str = ""
    added_at: datetime | None = None


@dataclass(frozen=True)
class NodeCondition:
    """A condition of a node."""

    type: str
    status: str
    reason: str = ""
    changed_at: datetime | None = None


@dataclass(frozen=True)
class NodeFact:
    """A node that hosts a pod of the job. ``exists`` is False if the API server knows no such node (any more)."""

    name: str
    exists: bool = True
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()

    @property
    def ready(self) -> NodeCondition | None:
        """The node's Ready condition."""
        return next((c for c in self.conditions if c.type == "Ready"), None)


@dataclass(frozen=True)
class LastReport:
    """The last report of a pod's agent and how long ago it came."""

    report: Report
    age_seconds: float


@dataclass(frozen=True)
class OtherOwner:
    """The job that the run's owner record names, by a live read. ``alive``: it exists with that UID and goes on."""

    job_uid: str
    alive: bool


@dataclass(frozen=True)
class Observation:
    """Everything that one decision rests on. ``nodes`` holds those that host a pod of the job; ``last_reports`` is by pod UID."""

    job: JobFact
    pods: tuple[PodFact, ...] = ()
    nodes: Mapping[str, NodeFact] = field(default_factory=dict)
    last_reports: Mapping[PodUid, LastReport] = field(default_factory=dict)
    other_owner: OtherOwner | None = None
