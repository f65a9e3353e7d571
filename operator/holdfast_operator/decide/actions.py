"""What a decision can ask for: the vocabulary of a Plan."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.identity import PodUid
from holdfast_contract.reasons import Metric, Reason
from holdfast_contract.sync import Directive


@dataclass(frozen=True)
class CreatePod:
    """Create the pod of a worker. Its name follows from index and attempt, so doing it twice is doing it once."""

    index: int
    attempt: int
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod (by UID)."""

    name: str
    uid: str
    grace_seconds: int | None = None  # None: the pod's own


class Finalizer(enum.Enum):
    """Put our finalizer on the job, or take it away."""

    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True)
class DeleteJob:
    """Delete the finished job (its time to live is over)."""


Action = CreatePod | DeletePod | Finalizer | DeleteJob


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job, emitted once the status that contains its cause is written."""

    reason: Reason
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True)
class Count:
    """A metric that moves once the status that contains its cause is written."""

    metric: Metric
    amount: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StatusDecision:
    """A decision that must be remembered before anything follows from it: a new status and what to tell the world."""

    status: TrainingJobStatus
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True)
class Wait:
    """Nothing to decide, and no later rule has a say. Look again after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Plan:
    """The result of a decision.

    A plan either stores a decision (no ``actions``; ``directives`` None, which leaves the published ones; the next pass
    follows at once) or brings about what the stored status says already.
    """

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    directives: Mapping[PodUid, Directive] | None = None
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()
    requeue_after_seconds: float = 0.0
