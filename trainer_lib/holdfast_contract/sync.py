"""The messages between agent and operator: one request, the whole observed state up, the whole desired state down.

Level-triggered both ways: any message may be lost, repeated or late. Deadlines travel as seconds left, never as
instants; no message carries a clock reading. Identity is not in the messages: it is the pod of the bearer token.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast_contract.manifest import CheckpointRef, Owner, Rejection
from holdfast_contract.reasons import Cause, SaveOutcome

PROTOCOL: Final = 1
HOLD_SECONDS: Final = 25.0
"""How long the operator holds a request whose directive the agent already obeys (below common proxy idle limits)."""
REQUEST_TIMEOUT_SECONDS: Final = 40.0
"""How long the agent waits for an answer: the hold plus time for a slow operator."""
WAIT_HEADER: Final = "Holdfast-Wait-Seconds"
"""Request header: hold this request no longer than so many seconds (0 to HOLD_SECONDS; absent: HOLD_SECONDS). An agent
whose trainer steps asks for a short hold: progress then flows over one connection that never has to be cut."""
LEADER_HEADER: Final = "Holdfast-Leader"
"""Answer header of a 421: host:port of the leader, the same as Directive.leader in the body."""
MAX_BODY_BYTES: Final = 256 * 1024
MAX_LIST: Final = 64
"""Longest list in a report (candidates, rejections, saves); the newest are kept."""
MAX_LAST_LINES_BYTES: Final = 4096
SIGTERM_SAVE_ID: Final = "sigterm"
"""Id of the save that a SIGTERM asks for. Chosen by the agent for its pod and by the library for its process; the two
are one request, which the operator never withdraws. The operator's own ids begin with a digit and cannot collide."""


class TrainerPhase(enum.StrEnum):
    """What the trainer process of a pod does now."""

    NONE = "none"  # never started in this pod, or stopped on request
    STARTING = "starting"  # spawned; no step of this attempt is complete
    RUNNING = "running"  # steps complete
    EXITED = "exited"  # ended by itself; `exit` says how


@dataclass(frozen=True)
class TrainerExit:
    """How a trainer process ended. ``attempt`` is the attempt it ran in."""

    attempt: int
    code: int  # 128 + n for signal n
    signal: int = 0
    cause: Cause | None = None  # the agent's opinion, where it knows (Hang, OutOfMemory); the operator classifies
    last_lines: str = ""  # the end of stderr, at most MAX_LAST_LINES_BYTES


@dataclass(frozen=True)
class SaveReport:
    """How a save request stands in this worker."""

    id: str
    outcome: SaveOutcome
    checkpoint: CheckpointRef | None = None
    reason: str = ""
    forecast_seconds: float | None = None  # run-ahead + step + p99 write, if the worker can tell


@dataclass(frozen=True)
class Inspection:
    """What worker 0 found in the run's folder, without loading any array. ``candidates`` newest first."""

    highest_attempt: int  # highest attempt folder; 0 if there is none
    candidates: tuple[CheckpointRef, ...] = ()
    owner: Owner | None = None
    error: str = ""  # storage could not be read or written: which path, what was found


@dataclass(frozen=True)
class Progress:
    """How far the trainer is. Steps count from 1; ``last_completed_step`` is the last whose result exists."""

    last_completed_step: int
    total_steps: int | None = None
    step_seconds: float | None = None  # recent median
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A worker's whole observed state. Written by the agent, read by the operator."""

    protocol: int
    attempt: int  # the attempt this agent obeys; 0 before the first directive
    obeys: str  # Directive.tag of the last directive received; "" at first
    phase: TrainerPhase
    exit: TrainerExit | None = None
    progress: Progress | None = None
    newest: CheckpointRef | None = None  # newest committed by this pod's trainer, in any attempt
    saves: tuple[SaveReport, ...] = ()
    restored: CheckpointRef | None = None  # what this attempt's ranks agreed on; None: from scratch or not yet
    rejected: tuple[Rejection, ...] = ()
    inspection: Inspection | None = None
    buckets: dict[str, float] = field(default_factory=dict)  # seconds per reasons.Bucket since this agent started
    terminating_seconds_left: float | None = None  # this pod got SIGTERM
    storage_error: str = ""  # what the trainer last said about its storage; "" when the last save went well

    def meaning(self) -> Report:
        """What of this report matters at once: the report without the values that change from second to second.

        Steps, seconds and forecasts are left out: no decision waits for them. While the meaning stays the same, the
        agent does not interrupt a held request to send a newer report, and the operator does not reconcile the job for
        it. Whether a deadline runs at all is kept; how much of it is left is not.
        """
        return replace(
            self,
            progress=None,
            buckets={},
            saves=tuple(replace(save, forecast_seconds=None) for save in self.saves),
            terminating_seconds_left=None if self.terminating_seconds_left is None else 0.0,
        )


class Action(enum.StrEnum):
    """What an agent is to do."""

    WAIT = "wait"  # run no trainer yet (a trainer of an older attempt is stopped)
    INSPECT = "inspect"  # like wait, and put an Inspection into the report
    RUN = "run"  # exactly one trainer of `attempt` runs; one of an older attempt is stopped first; never restart one
    EXIT = "exit"  # stop the trainer, end with ExitCode.SUPERSEDED


@dataclass(frozen=True)
class SaveRequest:
    """Save before ``seconds_left`` are over. ``stop``: end the trainer once the request is answered."""

    id: str
    seconds_left: float
    stop: bool = False


@dataclass(frozen=True)
class FailureHistory:
    """How often a job's training failed, in how many seconds of running, before an attempt began."""

    failures: int = 0
    running_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.failures < 0 or self.running_seconds < 0:
            found = f"{self.failures} failures in {self.running_seconds:g} s"
            raise ValueError(f"failures, running_seconds: found {found}, allowed: 0 or more of both")


@dataclass(frozen=True)
class Directive:
    """A worker's whole desired state. Written by the operator, obeyed by the agent.

    ``tag`` identifies everything but the seconds left and the history, which is the same for all of an attempt; a
    report repeats it as ``obeys``.
    """

    action: Action
    attempt: int
    coordinator: str = ""  # host:port for action run
    pin: CheckpointRef | None = None  # newest that may be restored; None: nothing, start from init
    take_over: bool = False  # the operator has seen that the recorded owner is gone, or the user insists
    save: SaveRequest | None = None
    why: str = ""  # with action exit, for the log; not in the tag
    leader: str = ""  # where to ask instead (421), host:port; "" here
    history: FailureHistory | None = None  # what the operator has observed of this job; with action run

    @property
    def tag(self) -> str:
        """A digest that changes exactly when the directive changes in meaning; a shrinking deadline is no change."""
        save = None if self.save is None else (self.save.id, self.save.stop)
        pin = None if self.pin is None else (self.pin.attempt, self.pin.step, self.pin.digest)
        meaning = (self.action.value, self.attempt, self.coordinator, pin, self.take_over, save)
        return hashlib.sha256(repr(meaning).encode()).hexdigest()[:16]
