"""Everything the agent knows, as one frozen value, and the pure functions that update it.

All instants are seconds on this process's monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast_contract.local import TrainerUpdate
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import SIGTERM_SAVE_ID, Action, Directive, Inspection, SaveReport, SaveRequest, TrainerExit

TERMINATION_MARGIN_SECONDS: Final = 3.0
"""How much of the grace period is reserved for ending: half before the kill, half after it. At most a quarter of it."""
_EARLIER_SECONDS: Final = 0.25
"""A repeated request moves its deadline forward only by more than this, which is more than a message's delay."""


@dataclass(frozen=True)
class PendingSave:
    """A save that the trainer is asked for. ``stop``: training ends once the request is answered.

    ``deadline`` is infinite if there is no hurry.
    """

    id: str
    deadline: float
    stop: bool = False

    def request(self, now: float) -> SaveRequest:
        """The message that the trainer receives at ``now``."""
        left = max(0.0, self.deadline - now)
        return SaveRequest(self.id, left if math.isfinite(left) else None, self.stop)


@dataclass(frozen=True)
class Termination:
    """SIGTERM arrived: the save that it asks for, the latest instant to kill the trainer, and whether a trainer ran."""

    save: PendingSave
    kill_at: float
    trainer_ran: bool
    forwarded: bool = False  # the trainer has no connection and was sent SIGTERM instead


@dataclass(frozen=True)
class Trainer:
    """The trainer process that was spawned last."""

    attempt: int
    progressed_at: float  # when it was spawned or last made progress
    running: bool = True  # until its end was seen and its last messages were read
    ended_at: float | None = None
    stopping_since: float | None = None  # the agent sent SIGKILL
    aborting_since: float | None = None  # it hung, and the agent asked it to dump its stacks
    connected: bool = False
    disconnected_at: float | None = None  # when its last connection ended; None if it never had one
    last_request_sent: PendingSave | None = None  # over the current connection
    update: TrainerUpdate = field(default_factory=TrainerUpdate)
    answered_at: float | None = None  # when the current request received its final answer
    exit: TrainerExit | None = None  # set if it ended by itself or hung; None if the agent stopped it

    @property
    def stepped(self) -> bool:
        """Whether a step of this attempt is complete. A restored step does not count."""
        base = self.update.restored.step if self.update.restored else 0
        return self.update.progress is not None and self.update.progress.last_completed_step > base

    @property
    def at_the_end(self) -> bool:
        """Whether every step is complete, so that only the final save remains."""
        progress = self.update.progress
        return progress is not None and progress.total_steps is not None and (
            progress.last_completed_step >= progress.total_steps
        )  # fmt: skip


@dataclass(frozen=True)
class AgentState:
    """One worker, seen from inside. ``attempt`` is the highest attempt that any directive named."""

    attempt: int = 0
    directive_tag: str = ""  # of the last directive; the next report repeats it as ``obeys``
    directive: Directive | None = None
    pending_save: PendingSave | None = None  # the operator's request
    trainer: Trainer | None = None
    children: bool = False  # whether any process of any trainer is left
    termination: Termination | None = None
    inspection: Inspection | None = None
    inspected_at: float | None = None
    newest: CheckpointRef | None = None
    unreachable_since: float | None = None

    @property
    def running(self) -> Trainer | None:
        """The trainer, while it runs."""
        return self.trainer if self.trainer is not None and self.trainer.running else None

    @property
    def current(self) -> Trainer | None:
        """The trainer of the current attempt, running or not."""
        return self.trainer if self.trainer is not None and self.trainer.attempt == self.attempt else None

    @property
    def effective_save(self) -> PendingSave | None:
        """The save that the trainer has to make. SIGTERM's takes precedence, because it is also the last."""
        return self.termination.save if self.termination else self.pending_save


def on_directive(state: AgentState, directive: Directive, now: float) -> AgentState:
    """Apply a directive.

    A directive of an older attempt comes from a deposed leader and changes nothing. EXIT is final whatever its attempt.

    Args:
        state: What the agent knows so far.
        directive: The operator's answer.
        now: When it arrived; its seconds left count from there.
    """
    state = replace(state, directive_tag=directive.tag)
    if directive.attempt < state.attempt and directive.action is not Action.EXIT:
        return state
    newer = directive.attempt > state.attempt
    same_inspection = directive.action is Action.INSPECT and not newer
    state = replace(
        state,
        attempt=max(state.attempt, directive.attempt),
        directive=directive,
        pending_save=_merged(None if newer else state.pending_save, directive.save, now),
        inspection=state.inspection if same_inspection else None,
        inspected_at=state.inspected_at if same_inspection else None,
    )
    return with_answer_noted(state, now)


def _merged(old: PendingSave | None, request: SaveRequest | None, now: float) -> PendingSave | None:
    """The request as it stands now. A repeated one keeps its deadline, unless the new one is clearly earlier."""
    if request is None:
        return None
    left = math.inf if request.seconds_left is None else request.seconds_left
    new = PendingSave(request.id, now + left, request.stop)
    if old is None or old.id != new.id:
        return new
    earlier = new.deadline < old.deadline - _EARLIER_SECONDS
    return replace(new, deadline=new.deadline if earlier else old.deadline)


def on_sigterm(state: AgentState, grace_seconds: float, now: float) -> AgentState:
    """Ask for the save before the pod ends; only the first SIGTERM counts.

    An unanswered request of the operator is made urgent instead of adding a second one.

    Args:
        state: What the agent knows so far.
        grace_seconds: The pod's termination grace period, which begins now.
        now: When the signal arrived.
    """
    if state.termination is not None:
        return state
    margin = min(TERMINATION_MARGIN_SECONDS, grace_seconds / 4)
    save = PendingSave(SIGTERM_SAVE_ID, now + grace_seconds - margin, stop=True)
    pending, trainer = state.pending_save, state.trainer
    if pending is not None and trainer is not None and not is_final(answer_of(trainer, pending.id)):
        save = PendingSave(pending.id, min(save.deadline, pending.deadline), stop=True)
    kill_at = now + grace_seconds - margin / 2
    state = replace(state, termination=Termination(save, kill_at, trainer_ran=state.running is not None))
    return with_answer_noted(state, now)


def on_update(state: AgentState, update: TrainerUpdate, now: float) -> AgentState:
    """Take in a message of the running trainer.

    Args:
        state: What the agent knows so far.
        update: The message: the trainer's whole state.
        now: When it arrived, which is when any progress in it counts as made.
    """
    trainer = state.trainer
    if trainer is None:
        return state
    made_progress = _progress_of(update) != _progress_of(trainer.update)
    trainer = replace(trainer, update=update, progressed_at=now if made_progress else trainer.progressed_at)
    refs = [ref for ref in (state.newest, update.newest) if ref is not None]
    return with_answer_noted(replace(state, trainer=trainer, newest=max(refs, default=None)), now)


def with_answer_noted(state: AgentState, now: float) -> AgentState:
    """The state with the instant at which the effective request received its final answer, if it has one."""
    trainer, save = state.trainer, state.effective_save
    if trainer is None:
        return state
    answered = save is not None and is_final(answer_of(trainer, save.id))
    at = (trainer.answered_at if trainer.answered_at is not None else now) if answered else None
    return replace(state, trainer=replace(trainer, answered_at=at))


def _progress_of(update: TrainerUpdate) -> object:
    """What counts as progress: a step completed, a checkpoint committed or restored. Signs of life do not."""
    step = update.progress.last_completed_step if update.progress else None
    return step, update.newest, update.restore_done, update.restored


def answer_of(trainer: Trainer, request_id: str) -> SaveReport | None:
    """The trainer's last report on a request; None if it has not mentioned the request."""
    return next((save for save in reversed(trainer.update.saves) if save.id == request_id), None)


def is_final(save: SaveReport | None) -> bool:
    """Whether a request is answered for good; False if there is no report on it."""
    return save is not None and save.outcome.is_final
