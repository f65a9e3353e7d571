"""What the operator observes in one pass, frozen. Besides the time, this is a decision's only input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_contract.identity import PodUid
from holdfast_contract.sync import Report


@dataclass(frozen=True)
class JobFact:
    """The job object. ``created_at`` and ``deleted_at`` are the API server's instants, in whole seconds."""

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
        """Name of the run: its folder under the checkpoint path."""
        return self.spec.checkpoint.run or self.uid


@dataclass(frozen=True)
class ContainerEnd:
    """How the trainer container ended, as the kubelet says. Its first process is the agent."""

    exit_code: int
    signal: int = 0
    reason: str = ""  # OOMKilled, Error, Completed ...
    message: str = ""  # the termination message: the agent's last lines


@dataclass(frozen=True)
class PodFact:
    """One pod that the job owns."""

    name: str
    uid: str
    index: int
    created_in_attempt: int
    phase: str = "Pending"  # Pending, Running, Succeeded, Failed, Unknown
    reason: str = ""  # status.reason: Evicted, NodeShutdown ...
    node: str = ""
    ip: str = ""
    deleted_at: datetime | None = None  # deletionTimestamp: when its grace period ends
    grace_seconds: float | None = None  # deletionGracePeriodSeconds
    disruption: str = ""  # reason of the condition DisruptionTarget, if it is True
    end: ContainerEnd | None = None
    waiting: str = ""  # why its container does not start, if the kubelet says so
    avoids: frozenset[str] = (
        frozenset()
    )  # nodes that the operator excluded by name; those of the user's template are not here

    @property
    def finished(self) -> bool:
        """Whether no process of the pod runs any more."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def terminating(self) -> bool:
        """Whether the pod is being deleted."""
        return self.deleted_at is not None


@dataclass(frozen=True)
class Taint:
    """A taint of a node. ``added_at`` is the instant that its writer gave, if any."""

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
    """A node with a pod of the job. ``exists`` is False if the API server knows no such node, or no longer."""

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
    """The last report of a pod's agent, and its age."""

    report: Report
    age_seconds: float


@dataclass(frozen=True)
class OtherOwner:
    """The other job that the run's owner record names, read live. ``alive``: it exists and has not finished."""

    job_uid: str
    alive: bool


DEFAULT_PROGRESS_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Observation:
    """Everything that one decision is based on.

    ``nodes`` holds, by name, the nodes with a pod of the job; ``last_reports`` is by pod UID. ``term_seconds``: for how
    long this operator has been leading, so that no agent can have reported to it earlier. ``progress_seconds``: how often
    the status may be written for progress alone.
    """

    job: JobFact
    pods: tuple[PodFact, ...] = ()
    nodes: Mapping[str, NodeFact] = field(default_factory=dict)
    last_reports: Mapping[PodUid, LastReport] = field(default_factory=dict)
    other_owner: OtherOwner | None = None
    term_seconds: float = math.inf
    progress_seconds: float = DEFAULT_PROGRESS_SECONDS
