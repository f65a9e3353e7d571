"""What the agent says to the operator: the whole of its state, and what of it matters at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from holdfast_agent.output import last_lines
from holdfast_agent.state import Ask, State, Trainer, answer_of
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import MAX_LIST, PROTOCOL, Action, Report, SaveReport, TrainerPhase

_LEAN_LIST: Final = 8
_LEAN_LAST_LINES_BYTES: Final = 512


def report_of(state: State, buckets: Mapping[str, float], now: float) -> Report:
    """The report of a state. What an older attempt's trainer did is left out, but for its exit and its checkpoint."""
    trainer = state.current
    update = trainer.update if trainer else None
    return Report(
        protocol=PROTOCOL,
        attempt=state.attempt,
        obeys=state.obeys,
        phase=phase_of(trainer),
        exit=state.trainer.exit if state.trainer else None,
        progress=update.progress if update else None,
        newest=state.newest,
        saves=saves_of(state),
        restored=update.restored if update else None,
        rejected=update.rejected[-MAX_LIST:] if update else (),
        inspection=state.inspection,
        buckets=dict(buckets),
        terminating_seconds_left=max(0.0, state.termination.ask.deadline - now) if state.termination else None,
        storage_error=update.storage_error if update else "",
    )


def phase_of(trainer: Trainer | None) -> TrainerPhase:
    """What the trainer of the obeyed attempt does."""
    if trainer is None:
        return TrainerPhase.NONE
    if trainer.exit is not None:
        return TrainerPhase.EXITED
    if not trainer.running:
        return TrainerPhase.NONE
    return TrainerPhase.RUNNING if trainer.stepped else TrainerPhase.STARTING


def saves_of(state: State) -> tuple[SaveReport, ...]:
    """How each save request stands: the trainer's words, put right where it cannot speak (any more)."""
    trainer = state.current
    said = trainer.update.saves if trainer else ()
    saves = {save.id: _settled(state, save) for save in said}
    for ask in (state.termination.ask if state.termination else None, state.ask):
        if ask is not None and ask.id not in saves:
            saves[ask.id] = _unspoken(state, ask)
    return tuple(saves.values())[-MAX_LIST:]


def _settled(state: State, save: SaveReport) -> SaveReport:
    """A trainer that ended while a save was pending did not commit it."""
    if save.outcome.is_final or state.running is not None:
        return save
    return _without_trainer(state, save.id)


def _unspoken(state: State, ask: Ask) -> SaveReport:
    """A request about which the trainer said nothing."""
    termination = state.termination
    if termination is not None and state.trainer is not None and ask.id != termination.ask.id:
        # The trainer hears of one request at a time: SIGTERM's save answers the operator's too.
        final = answer_of(state.trainer, termination.ask.id)
        if final is not None:
            return replace(_settled(state, final), id=ask.id)
    if state.current is None and _about_to_run(state):
        return SaveReport(ask.id, SaveOutcome.PENDING, reason="the trainer is about to start")
    if state.running is None:
        return _without_trainer(state, ask.id)
    waiting = "the trainer was told" if state.running.connected else "the trainer has not connected yet"
    return SaveReport(ask.id, SaveOutcome.PENDING, reason=waiting)


def _about_to_run(state: State) -> bool:
    return state.directive is not None and state.directive.action is Action.RUN and state.termination is None


def _without_trainer(state: State, request_id: str) -> SaveReport:
    end = state.trainer.exit if state.trainer else None
    if end is not None and end.code == ExitCode.DONE and state.newest is not None:
        return SaveReport(
            request_id, SaveOutcome.FRESH, state.newest, reason="training is done; its final save is committed"
        )
    if end is not None:
        return SaveReport(request_id, SaveOutcome.FAILED, reason=f"the trainer had ended with code {end.code}")
    reason = "no trainer runs" if state.trainer is None else "the trainer was stopped before the save was committed"
    return SaveReport(request_id, SaveOutcome.FAILED, reason=reason)


def lean(report: Report) -> Report:
    """The same report, small: what fits through an endpoint that called the whole one too large."""
    inspection, end, progress = report.inspection, report.exit, report.progress
    return replace(
        report,
        saves=report.saves[-_LEAN_LIST:],
        rejected=report.rejected[-_LEAN_LIST:],
        inspection=inspection and replace(inspection, candidates=inspection.candidates[:_LEAN_LIST]),
        exit=end and replace(end, last_lines=last_lines(end.last_lines.encode(), _LEAN_LAST_LINES_BYTES)),
        progress=progress and replace(progress, metrics={}),
    )
