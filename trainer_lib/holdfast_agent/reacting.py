"""What the agent does next: a pure function of what it knows. Level-triggered; every intent may be repeated.

All instants are seconds on the loop's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast_agent.agent_state import AgentState, PendingSave, Termination, Trainer, answer_of, is_final
from holdfast_contract.exits import ExitCode
from holdfast_contract.sync import Action, Directive

OVERDUE_SECONDS: Final = 1.0
"""How long past its deadline a request to save and stop may stay unanswered before the trainer is killed."""
LINGER_SECONDS: Final = 10.0
"""How long a trainer that was asked to stop may take to end after its answer."""
RECONNECT_SECONDS: Final = 2.0
"""How long a trainer that lost its connection may take to connect again, or to end, before it is sent SIGTERM."""
DUMP_SECONDS: Final = 3.0
"""How long a hung trainer may take to write its stacks before it is killed."""
UNKILLABLE_SECONDS: Final = 60.0
"""How long processes may survive SIGKILL (stuck in the kernel) before the agent abandons the container."""
REINSPECT_SECONDS: Final = 10.0
"""How often the run's folder is inspected while the operator asks for it: another job may still write there."""


@dataclass(frozen=True)
class Limits:
    """Limits from the job's spec, in seconds. None: no limit."""

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
    """The trainer hangs: make it write its stacks. ``Stop`` follows."""

    reason: str


@dataclass(frozen=True)
class SendSaveRequest:
    """Send the connected trainer the current save request; None withdraws the last one."""

    save: PendingSave | None


@dataclass(frozen=True)
class ForwardSigterm:
    """Send the trainer SIGTERM, because it has no connection over which to ask for a save."""


@dataclass(frozen=True)
class Inspect:
    """Inspect the run's folder."""


@dataclass(frozen=True)
class Leave:
    """End the agent, and with it the container."""

    code: int
    reason: str


Intent = Spawn | Stop | Abort | SendSaveRequest | ForwardSigterm | Inspect | Leave


def react(state: AgentState, limits: Limits, now: float) -> tuple[Intent, ...]:
    """What to do now. Precedence: unkillable processes, EXIT, SIGTERM, then the directive and the limits.

    Args:
        state: Everything the agent knows.
        limits: The job's limits on hangs and on waiting without an operator.
        now: The current instant.

    Returns:
        The intents to carry out, in this order; empty if there is nothing to do.
    """
    since = state.trainer.stopping_since if state.trainer else None
    if state.children and since is not None and now - since > UNKILLABLE_SECONDS:
        return (Leave(ExitCode.HANG, f"processes survive SIGKILL for {UNKILLABLE_SECONDS:.0f} s"),)
    directive = state.directive
    if directive is not None and directive.action is Action.EXIT:
        if state.running or state.children:
            return (Stop("exit requested"),)
        return (Leave(_code_when_superseded(state), f"exit requested: {directive.why or 'no reason was given'}"),)
    if state.termination is not None:
        return _terminating(state, state.termination, now)
    if state.running is not None:
        return _running(state, state.running, limits, now)
    return _idle(state, directive, limits, now)


def _terminating(state: AgentState, termination: Termination, now: float) -> tuple[Intent, ...]:
    trainer = state.running
    if trainer is None:
        if state.children:
            return (Stop("the trainer ended; the processes that it started must end too"),)
        return (Leave(_code_when_terminated(state, termination), "SIGTERM"),)
    if trainer.attempt < state.attempt:
        return (Stop(f"attempt {state.attempt} supersedes it"),)
    if now >= termination.kill_at:
        return (Stop("the grace period ends"),)
    if _lingers(trainer, now):
        return (Stop(f"it did not end within {LINGER_SECONDS:.0f} s after its answer"),)
    if trainer.connected:
        return _send_if_changed(trainer, termination.save)
    return (ForwardSigterm(),) if _only_signals_reach(trainer, now) and not termination.forwarded else ()


def _lingers(trainer: Trainer, now: float) -> bool:
    return trainer.answered_at is not None and now >= trainer.answered_at + LINGER_SECONDS


def _only_signals_reach(trainer: Trainer, now: float) -> bool:
    """Whether only SIGTERM can ask for the save: it is unanswered, and the trainer is not about to reconnect or end."""
    if trainer.answered_at is not None:
        return False
    return trainer.disconnected_at is None or now >= trainer.disconnected_at + RECONNECT_SECONDS


def _running(state: AgentState, trainer: Trainer, limits: Limits, now: float) -> tuple[Intent, ...]:
    if trainer.attempt < state.attempt:
        return (Stop(f"attempt {state.attempt} supersedes it"),)
    if trainer.stopping_since is not None:
        return (Stop("still stopping"),)
    save = state.pending_save
    if save is not None and save.stop:
        if _lingers(trainer, now):
            return (Stop(f"it did not end within {LINGER_SECONDS:.0f} s after its answer"),)
        if trainer.answered_at is None and now >= save.deadline + OVERDUE_SECONDS:
            return (Stop("it did not answer a request to save and stop in time"),)
    hang = _hang(trainer, limits, now)
    if hang is not None:
        return (hang,)
    return _send_if_changed(trainer, save) if trainer.connected else ()


def _send_if_changed(trainer: Trainer, save: PendingSave | None) -> tuple[Intent, ...]:
    sent = trainer.last_request_sent
    if sent == save:
        return ()
    if save is not None and is_final(answer_of(trainer, save.id)):
        # An answered request is not repeated for a new connection or a new deadline, only to add a stop.
        adds_stop = sent is not None and (sent.id, sent.stop) != (save.id, save.stop)
        return (SendSaveRequest(save),) if adds_stop else ()
    return (SendSaveRequest(save),)


def _hang(trainer: Trainer, limits: Limits, now: float) -> Intent | None:
    if trainer.aborting_since is not None:
        return Stop("it hung") if now >= trainer.aborting_since + DUMP_SECONDS else None
    # The final save of a large state takes longer than a step, so it gets the limit of the start.
    stepping = trainer.stepped and not trainer.at_the_end
    limit = limits.hang_step_seconds if stepping else limits.hang_start_seconds
    idle = now - trainer.progressed_at
    if limit is None or idle < limit:
        return None
    what = "completed no step" if stepping else "made no progress (start, restore, first step or final save)"
    return Abort(f"it {what} for {idle:.0f} s, allowed: {limit:.0f} s")


def _idle(state: AgentState, directive: Directive | None, limits: Limits, now: float) -> tuple[Intent, ...]:
    """No trainer runs."""
    orphaned = _orphaned(state, limits, now)
    if orphaned is not None:
        return (orphaned,)
    if state.children:
        return (Stop("the trainer ended; the processes that it started must end too"),)
    if directive is None:
        return ()
    if directive.action is Action.RUN and (state.trainer is None or state.trainer.attempt < directive.attempt):
        return (Spawn(directive),)
    if directive.action is Action.INSPECT:
        due = state.inspected_at is None or now >= state.inspected_at + REINSPECT_SECONDS
        return (Inspect(),) if due else ()
    return ()


def _orphaned(state: AgentState, limits: Limits, now: float) -> Leave | None:
    """A worker without a trainer and without an operator holds its machine for nothing.

    The limit counts from when both are missing: an operator that was away long before may be about to return.
    """
    since = state.unreachable_since
    if since is None:
        return None
    ended_at = state.trainer.ended_at if state.trainer else None
    if now - max(since, ended_at if ended_at is not None else since) < limits.orphan_seconds:
        return None
    end = state.trainer.exit if state.trainer else None
    unreachable = f"the operator could not be reached for {limits.orphan_seconds:.0f} s"
    if end is not None and end.code == ExitCode.DONE:
        return Leave(ExitCode.DONE, f"training is done, and {unreachable}")
    return Leave(ExitCode.ORPHANED, f"no trainer runs, and {unreachable}")


def _code_when_superseded(state: AgentState) -> int:
    end = state.trainer.exit if state.trainer else None
    return ExitCode.DONE if end is not None and end.code == ExitCode.DONE else ExitCode.SUPERSEDED


def _code_when_terminated(state: AgentState, termination: Termination) -> int:
    """The trainer's own code if it ended before SIGTERM; else whether the save that SIGTERM asked for is committed."""
    trainer = state.trainer
    end = trainer.exit if trainer else None
    if end is not None and (not termination.trainer_ran or end.code in {ExitCode.DONE, ExitCode.SAVED}):
        return end.code
    answer = answer_of(trainer, termination.save.id) if trainer and trainer.attempt == state.attempt else None
    saved = answer is not None and answer.outcome.is_saved
    return ExitCode.SAVED if saved else ExitCode.NOT_SAVED
