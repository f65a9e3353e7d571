"""What the loop hears about. Every thread and signal handler speaks to it through one queue of these."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast_contract.local import TrainerUpdate
from holdfast_contract.sync import Directive, Inspection


@dataclass(frozen=True)
class Wake:
    """Something may have changed that the loop looks up itself (a child ended, a limit passed)."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM or SIGINT came."""


@dataclass(frozen=True)
class Directed:
    """The operator answered. ``in_answer_to`` is the number of the report that it answers."""

    directive: Directive
    in_answer_to: int


@dataclass(frozen=True)
class Unreachable:
    """No directive could be had since this instant (monotonic)."""

    since: float


@dataclass(frozen=True)
class Connected:
    """A trainer of this attempt connected to the socket."""

    attempt: int


@dataclass(frozen=True)
class Updated:
    """The connected trainer spoke."""

    attempt: int
    update: TrainerUpdate


@dataclass(frozen=True)
class Disconnected:
    """The connection ended. Everything sent over it was heard before this."""

    attempt: int


@dataclass(frozen=True)
class Inspected:
    """The run's folder was inspected, or could not be in time."""

    attempt: int
    inspection: Inspection


Event = Wake | Terminate | Directed | Unreachable | Connected | Updated | Disconnected | Inspected
