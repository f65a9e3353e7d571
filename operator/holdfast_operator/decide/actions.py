"""What a decision can be, and what a plan consists of."""

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
    """Create the pod of a worker. Its name follows from index and attempt, so a repetition creates no second pod."""

    index: int
    attempt: int
    avoid_nodes: tuple[str, ...] = ()
    shun_nodes: tuple[str, ...] = ()  # the pod goes there only if it can go nowhere else


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod with exactly this UID."""

    name: str
    uid: str
    grace_seconds: int | None = None  # None: the pod's own grace period


class Finalizer(enum.Enum):
    """Add the operator's finalizer to the job, or remove it."""

    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True)
class DeleteJob:
    """Delete the finished job: its time to live is over."""


Action = CreatePod | DeletePod | Finalizer | DeleteJob


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job, emitted once the status with its cause is stored."""

    reason: Reason
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True)
class Count:
    """A change of a metric, made once the status with its cause is stored."""

    metric: Metric
    amount: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StatusDecision:
    """A decision that must be stored before anything follows from it: a new status, with its Events and counts."""

    status: TrainingJobStatus
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True)
class Wait:
    """Nothing changes, and no later rule is asked. The next pass follows after ``seconds`` at the latest."""

    seconds: float


@dataclass(frozen=True)
class JobPlan:
    """What one pass does.

    A plan either stores a decision or brings about what the stored status says. In the first case it has no
    ``actions``, ``directives`` is None (the published ones stay), and the next pass follows at once.
    """

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    directives: Mapping[PodUid, Directive] | None = None
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()
    requeue_after_seconds: float = 0.0
