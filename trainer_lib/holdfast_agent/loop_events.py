"""The events of the agent's loop. Every thread and signal handler reaches the loop through one queue of these."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast_contract.local import TrainerUpdate
from holdfast_contract.sync import Directive, Inspection


@dataclass(frozen=True)
class Wake:
    """Something may have changed that the loop looks up itself, such as a child that ended."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM or SIGINT arrived."""


@dataclass(frozen=True)
class Directed:
    """The operator answered with a directive."""

    directive: Directive


@dataclass(frozen=True)
class Unreachable:
    """No request has been answered with a directive since ``since``, in seconds on the monotonic clock."""

    since: float


@dataclass(frozen=True)
class Connected:
    """A trainer of this attempt connected to the socket."""

    attempt: int


@dataclass(frozen=True)
class Updated:
    """The connected trainer sent a message."""

    attempt: int
    update: TrainerUpdate


@dataclass(frozen=True)
class Disconnected:
    """The connection ended. Everything that was sent over it was posted before this event."""

    attempt: int


@dataclass(frozen=True)
class Inspected:
    """The run's folder was inspected, or storage did not answer in time."""

    attempt: int
    inspection: Inspection


Event = Wake | Terminate | Directed | Unreachable | Connected | Updated | Disconnected | Inspected
