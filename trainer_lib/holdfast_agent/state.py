"""Everything the agent knows, as one frozen value, and the pure functions by which it learns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from holdfast_contract.local import TrainerUpdate
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import SIGTERM_SAVE_ID, Action, Directive, Inspection, SaveReport, SaveRequest, TrainerExit

TERMINATION_MARGIN_SECONDS: Final = 3.0
"""Of the grace period, what is kept back for ending: half before the kill, half after it. At most a quarter of it."""
_EARLIER_SECONDS: Final = 0.25
"""A repeated request moves its deadline only by more than what messages are delayed by."""


@dataclass(frozen=True)
class Ask:
    """A save that is wanted. ``deadline`` is on this process's monotonic clock."""

    id: str
    deadline: float
    stop: bool = False

    def request(self, now: float) -> SaveRequest:
        """As it is said to the trainer now."""
        return SaveRequest(self.id, max(0.0, self.deadline - now), self.stop)


@dataclass(frozen=True)
class Termination:
    """SIGTERM came: the save that it asks for, when the trainer is killed at the latest, and what ran at that time."""

    ask: Ask
    kill_at: float
    trainer_ran: bool
    forwarded: bool = False  # the trainer has no connection and was sent SIGTERM instead


@dataclass(frozen=True)
class Trainer:
    """The last trainer that was spawned. Times are monotonic."""

    attempt: int
    progressed_at: float  # spawned, or when it last got on
    running: bool = True  # until its end was seen and its last words were read
    ended_at: float | None = None
    stopping_since: float | None = None  # killed by us
    aborting_since: float | None = None  # hung: asked to dump its stacks
    connected: bool = False
    disconnected_at: float | None = None  # when its last connection ended; None if it never had one
    told: Ask | None = None  # what this connection was last told
    update: TrainerUpdate = field(default_factory=TrainerUpdate)
    answered_at: float | None = None  # when the current request got its final answer
    exit: TrainerExit | None = None  # ended by itself, or hung

    @property
    def stepped(self) -> bool:
        """Whether a step of this attempt is complete: a restored step is not."""
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
class State:
    """One worker, seen from inside. ``attempt`` is the highest that was ever asked for."""

    attempt: int = 0
    obeys: str = ""
    directive: Directive | None = None
    ask: Ask | None = None
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
        """The trainer of the attempt that is obeyed, running or not."""
        return self.trainer if self.trainer is not None and self.trainer.attempt == self.attempt else None

    @property
    def effective_ask(self) -> Ask | None:
        """The save that the trainer is to make: SIGTERM's comes first, for it is also the last."""
        return self.termination.ask if self.termination else self.ask


def obey(state: State, directive: Directive, now: float) -> State:
    """A directive came. One of an older attempt (a deposed leader) changes nothing, except that EXIT is always final."""
    state = replace(state, obeys=directive.tag)
    if directive.attempt < state.attempt and directive.action is not Action.EXIT:
        return state
    newer = directive.attempt > state.attempt
    same_look = directive.action is Action.INSPECT and not newer
    state = replace(
        state,
        attempt=max(state.attempt, directive.attempt),
        directive=directive,
        ask=_merged(None if newer else state.ask, directive.save, now),
        inspection=state.inspection if same_look else None,
        inspected_at=state.inspected_at if same_look else None,
    )
    return with_answer(state, now)


def _merged(old: Ask | None, request: SaveRequest | None, now: float) -> Ask | None:
    if request is None:
        return None
    new = Ask(request.id, now + request.seconds_left, request.stop)
    if old is None or old.id != new.id:
        return new
    earlier = new.deadline < old.deadline - _EARLIER_SECONDS
    return replace(new, deadline=new.deadline if earlier else old.deadline)


def terminate(state: State, grace_seconds: float, now: float) -> State:
    """SIGTERM came; only the first one counts. An unanswered save request is made urgent instead of a second one."""
    if state.termination is not None:
        return state
    margin = min(TERMINATION_MARGIN_SECONDS, grace_seconds / 4)
    ask = Ask(SIGTERM_SAVE_ID, now + grace_seconds - margin, stop=True)
    pending, trainer = state.ask, state.trainer
    if pending is not None and trainer is not None and not is_final(answer_of(trainer, pending.id)):
        ask = Ask(pending.id, min(ask.deadline, pending.deadline), stop=True)
    kill_at = now + grace_seconds - margin / 2
    state = replace(state, termination=Termination(ask, kill_at, trainer_ran=state.running is not None))
    return with_answer(state, now)


def hear(state: State, update: TrainerUpdate, now: float) -> State:
    """The running trainer said how it stands."""
    trainer = state.trainer
    if trainer is None:
        return state
    got_on = _mark(update) != _mark(trainer.update)
    trainer = replace(trainer, update=update, progressed_at=now if got_on else trainer.progressed_at)
    refs = [ref for ref in (state.newest, update.newest) if ref is not None]
    return with_answer(replace(state, trainer=trainer, newest=max(refs, default=None)), now)


def with_answer(state: State, now: float) -> State:
    """Note when the effective request got its final answer."""
    trainer, ask = state.trainer, state.effective_ask
    if trainer is None:
        return state
    answered = ask is not None and is_final(answer_of(trainer, ask.id))
    at = (trainer.answered_at if trainer.answered_at is not None else now) if answered else None
    return replace(state, trainer=replace(trainer, answered_at=at))


def _mark(update: TrainerUpdate) -> object:
    """What counts as getting on: a step completed, a checkpoint committed or restored. Not mere signs of life."""
    step = update.progress.last_completed_step if update.progress else None
    return step, update.newest, update.restore_done, update.restored


def answer_of(trainer: Trainer, request_id: str) -> SaveReport | None:
    """What a trainer said about a request, if anything."""
    return next((save for save in reversed(trainer.update.saves) if save.id == request_id), None)


def is_final(save: SaveReport | None) -> bool:
    """Whether a request has its answer."""
    return save is not None and save.outcome.is_final
