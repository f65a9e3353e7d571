"""Asking all workers to save and stop, and what became of that save."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast_contract import defaults
from holdfast_contract.api_status import SavePurpose
from holdfast_contract.reasons import Reason
from holdfast_operator.decide import saves
from holdfast_operator.decide.actions import Event, StatusDecision
from holdfast_operator.decide.members import JobView

POLL_SECONDS: Final = 0.5
"""How soon a wait that reports usually end is checked again, should a wake-up get lost."""


def grace_seconds(view: JobView) -> int:
    """The workers' grace period."""
    return view.spec.template.spec.termination_grace_period_seconds or defaults.GRACE_SECONDS


def stop(view: JobView, purpose: SavePurpose, reason: Reason) -> StatusDecision:
    deadline = view.now + timedelta(seconds=grace_seconds(view))
    event = Event(reason, f"the workers are asked to save and stop within {grace_seconds(view)} s")
    return StatusDecision(saves.ask(view, purpose, deadline), (event,))


def stop_outcome(view: JobView) -> str | None:
    """What became of the save before a stop; None while that is open."""
    if view.status.save is None:
        return "no trainer ran, so nothing was saved"
    verdict = saves.judge(view, view.status.save)
    if verdict is None:
        return None
    return (
        f"saved step {verdict.step}"
        if verdict.outcome.is_saved
        else f"not saved ({verdict.outcome.value}): {verdict.reason}"
    )
