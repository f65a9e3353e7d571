"""The report that the agent sends to the operator: the whole of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from holdfast_agent.agent_state import AgentState, PendingSave, Trainer, answer_of
from holdfast_agent.container_output import last_lines
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import MAX_LIST, PROTOCOL, Action, Report, SaveReport, TrainerPhase

_LEAN_LIST: Final = 8
_LEAN_LAST_LINES_BYTES: Final = 512


def report_of(state: AgentState, buckets: Mapping[str, float], now: float) -> Report:
    """The report of a state. Of an older attempt's trainer it keeps only the exit and the newest checkpoint.

    Args:
        state: Everything the agent knows.
        buckets: Seconds per ``reasons.Bucket`` since the agent's start.
        now: The current instant, in seconds on the clock of ``state``.
    """
    trainer = state.current
    update = trainer.update if trainer else None
    return Report(
        protocol=PROTOCOL,
        attempt=state.attempt,
        obeys=state.directive_tag,
        phase=phase_of(trainer),
        exit=state.trainer.exit if state.trainer else None,
        progress=update.progress if update else None,
        newest=state.newest,
        saves=saves_of(state),
        restored=update.restored if update else None,
        rejected=update.rejected[-MAX_LIST:] if update else (),
        inspection=state.inspection,
        buckets=dict(buckets),
        terminating_seconds_left=max(0.0, state.termination.save.deadline - now) if state.termination else None,
        storage_error=update.storage_error if update else "",
    )


def phase_of(trainer: Trainer | None) -> TrainerPhase:
    """The phase of the current attempt's trainer; None: it was never spawned."""
    if trainer is None:
        return TrainerPhase.NONE
    if trainer.exit is not None:
        return TrainerPhase.EXITED
    if not trainer.running:
        return TrainerPhase.NONE
    return TrainerPhase.RUNNING if trainer.stepped else TrainerPhase.STARTING


def saves_of(state: AgentState) -> tuple[SaveReport, ...]:
    """The status of each save request: the trainer's own reports, completed where it cannot report (any more)."""
    trainer = state.current
    reported = trainer.update.saves if trainer else ()
    saves = {save.id: _settled(state, save) for save in reported}
    for pending in (state.termination.save if state.termination else None, state.pending_save):
        if pending is not None and pending.id not in saves:
            saves[pending.id] = _unmentioned(state, pending)
    return tuple(saves.values())[-MAX_LIST:]


def _settled(state: AgentState, save: SaveReport) -> SaveReport:
    """The trainer's report, unless it ended while the save was pending: then the save was not committed."""
    if save.outcome.is_final or state.running is not None:
        return save
    return _without_trainer(state, save.id)


def _unmentioned(state: AgentState, pending: PendingSave) -> SaveReport:
    """The status of a request that the trainer has not mentioned."""
    termination = state.termination
    if termination is not None and state.trainer is not None and pending.id != termination.save.id:
        # The trainer receives one request at a time: SIGTERM's save answers the operator's too.
        final = answer_of(state.trainer, termination.save.id)
        if final is not None:
            return replace(_settled(state, final), id=pending.id)
    if state.current is None and _about_to_run(state):
        return SaveReport(pending.id, SaveOutcome.PENDING, reason="the trainer is about to start")
    if state.running is None:
        return _without_trainer(state, pending.id)
    waiting = "the trainer was asked" if state.running.connected else "the trainer has not connected yet"
    return SaveReport(pending.id, SaveOutcome.PENDING, reason=waiting)


def _about_to_run(state: AgentState) -> bool:
    return state.directive is not None and state.directive.action is Action.RUN and state.termination is None


def _without_trainer(state: AgentState, request_id: str) -> SaveReport:
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
    """The same report with short lists and no metrics, for an endpoint that refused the whole one as too large."""
    inspection, end, progress = report.inspection, report.exit, report.progress
    return replace(
        report,
        saves=report.saves[-_LEAN_LIST:],
        rejected=report.rejected[-_LEAN_LIST:],
        inspection=inspection and replace(inspection, candidates=inspection.candidates[:_LEAN_LIST]),
        exit=end and replace(end, last_lines=last_lines(end.last_lines.encode(), _LEAN_LAST_LINES_BYTES)),
        progress=progress and replace(progress, metrics={}),
    )
