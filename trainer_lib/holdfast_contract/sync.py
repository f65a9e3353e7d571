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
"""How long the operator holds a request while its directive is unchanged (below common proxy idle limits)."""
REQUEST_TIMEOUT_SECONDS: Final = 40.0
"""How long the agent waits for an answer: the hold, plus time for a slow operator."""
WAIT_HEADER: Final = "Holdfast-Wait-Seconds"
"""Request header, written by the agent: hold this request at most so many seconds (0 to HOLD_SECONDS; absent:
HOLD_SECONDS). An agent whose trainer steps asks for a short hold, so that its progress flows without interruptions."""
LEADER_HEADER: Final = "Holdfast-Leader"
"""Header of a 421 answer, written by a standby operator: host:port of the leader, as in the body's Directive.leader."""
MAX_BODY_BYTES: Final = 256 * 1024
"""The operator refuses a longer report, the agent a longer answer."""
MAX_LIST: Final = 64
"""The longest list in a report (candidates, rejections, saves); the agent keeps the newest."""
MAX_LAST_LINES_BYTES: Final = 4096
"""Longest ``TrainerExit.last_lines`` and longest termination message, which the kubelet cuts at this length."""
SIGTERM_SAVE_ID: Final = "sigterm"
"""Id of the save that a SIGTERM asks for. Chosen by the agent for its pod and by the library for its process; the two
are one request, which the operator never withdraws. The operator's own ids begin with a digit and cannot collide."""


class TrainerPhase(enum.StrEnum):
    """What the trainer process of a pod does now. Written by the agent, read by the operator."""

    NONE = "none"  # never started in this pod, or stopped on request
    STARTING = "starting"  # spawned; no step of this attempt is complete
    RUNNING = "running"  # steps complete
    EXITED = "exited"  # ended by itself; `exit` says how


@dataclass(frozen=True)
class TrainerExit:
    """How a trainer process ended. ``attempt`` is the attempt that it ran in."""

    attempt: int
    code: int  # 128 + n for signal n
    signal: int = 0
    cause: Cause | None = None  # set by the agent where it knows (Hang, OutOfMemory); else the operator classifies
    last_lines: str = ""  # the end of stderr, at most MAX_LAST_LINES_BYTES


@dataclass(frozen=True)
class SaveReport:
    """The state of one save request in this worker. Written by the library or the agent, read by the operator."""

    id: str
    outcome: SaveOutcome
    checkpoint: CheckpointRef | None = None
    reason: str = ""
    forecast_seconds: float | None = None  # until the commit: run-ahead + step + p99 write; None if unknown


@dataclass(frozen=True)
class Inspection:
    """What worker 0's agent found in the run's folder, for the operator. ``candidates`` are newest first."""

    highest_attempt: int  # highest number that an attempt's folder or a stray file has; 0 if there is none
    candidates: tuple[CheckpointRef, ...] = ()
    owner: Owner | None = None
    error: str = ""  # why storage cannot be used: the path and what was found; "" if it can


@dataclass(frozen=True)
class Progress:
    """How far the trainer is. Steps count from 1; the result of ``last_completed_step`` exists."""

    last_completed_step: int
    total_steps: int | None = None
    step_seconds: float | None = None  # recent median
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A worker's whole observed state. Written by the agent, read by the operator."""

    protocol: int
    attempt: int  # highest attempt of any directive; 0 before the first directive
    obeys: str  # Directive.tag of the last directive; "" before the first
    phase: TrainerPhase
    exit: TrainerExit | None = None
    progress: Progress | None = None
    newest: CheckpointRef | None = None  # newest checkpoint that this pod's trainers committed, in any attempt
    saves: tuple[SaveReport, ...] = ()
    restored: CheckpointRef | None = None  # by agreement of this attempt's ranks; None: from scratch, or not yet
    rejected: tuple[Rejection, ...] = ()
    inspection: Inspection | None = None
    buckets: dict[str, float] = field(default_factory=dict)  # seconds per reasons.Bucket since this agent started
    terminating_seconds_left: float | None = None  # until the save that SIGTERM asks for is due; None: no SIGTERM
    storage_error: str = ""  # the trainer's last storage error; "" once a save has succeeded again

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
    """What an agent has to do. Written by the operator, read by the agent."""

    WAIT = "wait"  # run no trainer yet; stop a trainer of an older attempt
    INSPECT = "inspect"  # like wait, and put an Inspection into the report
    RUN = "run"  # run one trainer of `attempt`, after stopping an older attempt's; never restart it
    EXIT = "exit"  # stop the trainer and end, with ExitCode.SUPERSEDED unless training is done


@dataclass(frozen=True)
class SaveRequest:
    """Save within ``seconds_left``; None: no hurry. ``stop``: training ends once the request is answered.

    The operator writes it into a directive, the agent passes it to its trainer, and the ranks agree on it. The agent makes
    a request of its own on SIGTERM, and the library for SIGTERM, for the program and for the save policy.
    """

    id: str
    seconds_left: float | None = None
    stop: bool = False


@dataclass(frozen=True)
class FailureHistory:
    """How often a job's training failed before an attempt began, and for how many seconds trainers ran until then.

    Written by the operator, passed on by the agent, read by the library for adaptive save intervals.
    """

    failures: int = 0
    running_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.failures < 0 or self.running_seconds < 0:
            found = f"{self.failures} failures in {self.running_seconds:g} s"
            raise ValueError(f"failures, running_seconds: found {found}, allowed: 0 or more of both")


@dataclass(frozen=True)
class Directive:
    """A worker's whole desired state. Written by the operator, carried out by the agent.

    ``tag`` identifies everything but the seconds left and the history, which is the same for all of an attempt; a
    report repeats it as ``obeys``.
    """

    action: Action
    attempt: int
    coordinator: str = ""  # host:port for action run
    pin: CheckpointRef | None = None  # newest checkpoint that may be restored; None: start from scratch
    take_over: bool = False  # the recorded owner is gone, or the spec says so
    save: SaveRequest | None = None
    why: str = ""  # with action exit, for the log; not in the tag
    leader: str = ""  # with a 421: host:port of the operator to ask instead; else ""
    history: FailureHistory | None = None  # what the operator has observed of this job; with action run

    @property
    def tag(self) -> str:
        """A digest that changes exactly when the directive changes in meaning. A shrinking deadline is no change."""
        save = None if self.save is None else (self.save.id, self.save.stop)
        pin = None if self.pin is None else (self.pin.attempt, self.pin.step, self.pin.digest)
        meaning = (self.action.value, self.attempt, self.coordinator, pin, self.take_over, save)
        return hashlib.sha256(repr(meaning).encode()).hexdigest()[:16]
