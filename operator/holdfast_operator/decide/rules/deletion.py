"""Rule: a job that is being deleted saves and stops first.

finalizer set, a trainer may run ──► save requested ──► outcome known ──► pods deleted, finalizer removed (``effects``)

The save never takes longer than the workers' grace period and LATE_ANSWER_SECONDS.
"""

from __future__ import annotations

from holdfast_contract.reasons import Reason
from holdfast_operator.decide import conditions, step_progress
from holdfast_operator.decide.actions import StatusDecision, Wait
from holdfast_operator.decide.ending import IDLE_SECONDS
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.stopping import POLL_SECONDS, stop, stop_outcome


def stop_for_deletion(view: JobView) -> StatusDecision | Wait | None:
    """A job that is being deleted stops training; its workers save first."""
    if view.job.deleted_at is None:
        return None
    if (
        not _save_is_requested(view)
        and view.job.has_finalizer
        and step_progress.may_train(view)
        and not conditions.finished(view.status)
    ):
        return stop(view, "Delete", Reason.DELETING)
    return Wait(POLL_SECONDS if not may_release(view) else IDLE_SECONDS)


def may_release(view: JobView) -> bool:
    """Whether a job that is being deleted has no save to wait for, so that its pods and the finalizer may be removed."""
    saving = _save_is_requested(view) and stop_outcome(view) is None
    return view.job.deleted_at is not None and not saving


def _save_is_requested(view: JobView) -> bool:
    return view.status.save is not None and view.status.save.purpose == "Delete"
