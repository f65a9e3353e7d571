"""Requesting that all workers save and stop, and the outcome of that save."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast_contract import defaults
from holdfast_contract.api_status import SavePurpose
from holdfast_contract.reasons import Reason
from holdfast_operator.decide import requested_saves
from holdfast_operator.decide.actions import Event, StatusDecision
from holdfast_operator.decide.members import JobView

POLL_SECONDS: Final = 0.5
"""How soon a wait that usually ends with a report is checked again, in case a wake-up is lost."""

NOTHING_SAVED: Final = "no trainer ran, so nothing was saved"


def grace_seconds(view: JobView) -> int:
    """The workers' grace period: that of the pod template, or the default of Kubernetes."""
    return view.spec.template.spec.termination_grace_period_seconds or defaults.GRACE_SECONDS


def stop(view: JobView, purpose: SavePurpose, reason: Reason) -> StatusDecision:
    """Request a save after which the trainers end, with the grace period as its deadline.

    Args:
        view: the job.
        purpose: why the workers stop, for the status.
        reason: the same, for the Event.
    """
    deadline = view.now + timedelta(seconds=grace_seconds(view))
    event = Event(reason, f"all workers are to save and stop within {grace_seconds(view)} s")
    return StatusDecision(requested_saves.request_save(view, purpose, deadline), (event,))


def stop_outcome(view: JobView) -> str | None:
    """The outcome of the save before a stop, in words; None while it is open."""
    if view.status.save is None:
        return NOTHING_SAVED
    verdict = requested_saves.judge(view, view.status.save)
    if verdict is None:
        return None
    return requested_saves.describe(verdict)
