"""What the agent does next: a pure function of what it knows. Level-triggered; every intent may be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast_agent.state import Ask, State, Termination, Trainer, answer_of, is_final
from holdfast_contract.exits import ExitCode
from holdfast_contract.sync import Action, Directive

OVERDUE_SECONDS: Final = 1.0
"""How long past its deadline a request to save and stop may stay unanswered before the trainer is killed."""
LINGER_SECONDS: Final = 10.0
"""How long a trainer that was told to stop may take to end after its answer."""
RECONNECT_SECONDS: Final = 2.0
"""How long a trainer that lost its connection may take to connect again, or to end, before it is sent SIGTERM."""
DUMP_SECONDS: Final = 3.0
"""How long a hung trainer may take to write its stacks before it is killed."""
UNKILLABLE_SECONDS: Final = 60.0
"""How long processes may survive SIGKILL (stuck in the kernel) before the container is given up."""
LOOK_AGAIN_SECONDS: Final = 10.0
"""How often the run's folder is inspected while that is asked for: another job may still write to it."""


@dataclass(frozen=True)
class Limits:
    """From the job's spec."""

    orphan_seconds: float
    hang_step_seconds: float | None = None
    hang_start_seconds: float | None = None


@dataclass(frozen=True)
class Spawn:
    """Start the trainer of this directive's attempt."""

    directive: Directive


@dataclass(frozen=True)
class Stop:
    """Kill every process of the trainer."""

    reason: str


@dataclass(frozen=True)
class Abort:
    """The trainer hangs: have it write its stacks, then kill it."""

    reason: str


@dataclass(frozen=True)
class Tell:
    """Say to the connected trainer which save is wanted; None withdraws."""

    ask: Ask | None


@dataclass(frozen=True)
class Forward:
    """Send the trainer SIGTERM: it has no connection over which to ask."""


@dataclass(frozen=True)
class Inspect:
    """Look into the run's folder."""


@dataclass(frozen=True)
class Leave:
    """End the agent, and so the container."""

    code: int
    reason: str


Intent = Spawn | Stop | Abort | Tell | Forward | Inspect | Leave


def react(state: State, limits: Limits, now: float) -> tuple[Intent, ...]:
    """What to do now. Precedence: exit > SIGTERM > the directive > limits."""
    since = state.trainer.stopping_since if state.trainer else None
    if state.children and since is not None and now - since > UNKILLABLE_SECONDS:
        return (Leave(ExitCode.HANG, f"processes survive SIGKILL for {UNKILLABLE_SECONDS:.0f} s"),)
    directive = state.directive
    if directive is not None and directive.action is Action.EXIT:
        if state.running or state.children:
            return (Stop("told to exit"),)
        return (Leave(_code_when_told_to_exit(state), f"told to exit: {directive.why or 'no reason was given'}"),)
    if state.termination is not None:
        return _terminating(state, state.termination, now)
    if state.running is not None:
        return _running(state, state.running, limits, now)
    return _idle(state, directive, limits, now)


def _terminating(state: State, termination: Termination, now: float) -> tuple[Intent, ...]:
    trainer = state.running
    if trainer is None:
        if state.children:
            return (Stop("the trainer ended; what it started must end too"),)
        return (Leave(_code_when_terminated(state, termination), "SIGTERM"),)
    if trainer.attempt < state.attempt:
        return (Stop(f"attempt {state.attempt} supersedes it"),)
    if now >= termination.kill_at:
        return (Stop("the grace period ends"),)
    if trainer.answered_at is not None and now >= trainer.answered_at + LINGER_SECONDS:
        return (Stop(f"it did not end within {LINGER_SECONDS:.0f} s after its answer"),)
    if trainer.connected:
        return _told(trainer, termination.ask)
    return (Forward(),) if _only_signals_reach(trainer, now) and not termination.forwarded else ()


def _only_signals_reach(trainer: Trainer, now: float) -> bool:
    """Whether SIGTERM is the way to ask for a save: not if it was answered, nor while the trainer may reconnect or end."""
    if trainer.answered_at is not None:
        return False
    return trainer.disconnected_at is None or now >= trainer.disconnected_at + RECONNECT_SECONDS


def _running(state: State, trainer: Trainer, limits: Limits, now: float) -> tuple[Intent, ...]:
    if trainer.attempt < state.attempt:
        return (Stop(f"attempt {state.attempt} supersedes it"),)
    if trainer.stopping_since is not None:
        return (Stop("still stopping"),)
    ask = state.ask
    if ask is not None and ask.stop:
        if trainer.answered_at is not None and now >= trainer.answered_at + LINGER_SECONDS:
            return (Stop(f"it did not end within {LINGER_SECONDS:.0f} s after its answer"),)
        if trainer.answered_at is None and now >= ask.deadline + OVERDUE_SECONDS:
            return (Stop("it did not answer a request to save and stop in time"),)
    hang = _hang(trainer, limits, now)
    if hang is not None:
        return (hang,)
    return _told(trainer, ask) if trainer.connected else ()


def _told(trainer: Trainer, ask: Ask | None) -> tuple[Intent, ...]:
    if trainer.told == ask:
        return ()
    if ask is not None and is_final(answer_of(trainer, ask.id)):
        # Answered already: neither a new connection nor a new deadline asks for it again, only a new wish to stop.
        told = trainer.told
        if told is None or (told.id, told.stop) == (ask.id, ask.stop):
            return ()
    return (Tell(ask),)


def _hang(trainer: Trainer, limits: Limits, now: float) -> Intent | None:
    if trainer.aborting_since is not None:
        return Stop("it hung") if now >= trainer.aborting_since + DUMP_SECONDS else None
    # The final save of a large state takes longer than a step, so it gets the limit of the start.
    stepping = trainer.stepped and not trainer.at_the_end
    limit = limits.hang_step_seconds if stepping else limits.hang_start_seconds
    idle = now - trainer.progressed_at
    if limit is None or idle < limit:
        return None
    what = "completed no step" if stepping else "did not get on (start, restore, first step or final save)"
    return Abort(f"it {what} for {idle:.0f} s, allowed: {limit:.0f} s")


def _idle(state: State, directive: Directive | None, limits: Limits, now: float) -> tuple[Intent, ...]:
    """No trainer runs."""
    orphan = _orphan(state, limits, now)
    if orphan is not None:
        return (orphan,)
    if state.children:
        return (Stop("the trainer ended; what it started must end too"),)
    if directive is None:
        return ()
    if directive.action is Action.RUN and (state.trainer is None or state.trainer.attempt < directive.attempt):
        return (Spawn(directive),)
    if directive.action is Action.INSPECT:
        due = state.inspected_at is None or now >= state.inspected_at + LOOK_AGAIN_SECONDS
        return (Inspect(),) if due else ()
    return ()


def _orphan(state: State, limits: Limits, now: float) -> Leave | None:
    """A worker without a trainer and without an operator holds its machine for nothing.

    The limit counts from when both are missing: an operator that was away for long before may be about to return.
    """
    since = state.unreachable_since
    if since is None:
        return None
    ended_at = state.trainer.ended_at if state.trainer else None
    if now - max(since, ended_at if ended_at is not None else since) < limits.orphan_seconds:
        return None
    end = state.trainer.exit if state.trainer else None
    silent = f"the operator could not be reached for {limits.orphan_seconds:.0f} s"
    if end is not None and end.code == ExitCode.DONE:
        return Leave(ExitCode.DONE, f"training is done, and {silent}")
    return Leave(ExitCode.ORPHANED, f"no trainer runs, and {silent}")


def _code_when_told_to_exit(state: State) -> int:
    end = state.trainer.exit if state.trainer else None
    return ExitCode.DONE if end is not None and end.code == ExitCode.DONE else ExitCode.SUPERSEDED


def _code_when_terminated(state: State, termination: Termination) -> int:
    """Before SIGTERM: the trainer's own code. After it: whether the save that SIGTERM asked for is committed."""
    trainer = state.trainer
    end = trainer.exit if trainer else None
    if end is not None and (not termination.trainer_ran or end.code in {ExitCode.DONE, ExitCode.SAVED}):
        return end.code
    answer = answer_of(trainer, termination.ask.id) if trainer and trainer.attempt == state.attempt else None
    saved = answer is not None and answer.outcome.is_saved
    return ExitCode.SAVED if saved else ExitCode.NOT_SAVED
