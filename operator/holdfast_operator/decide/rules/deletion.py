"""A job that is being deleted: an orderly save first, never longer than the grace period and LATE_ANSWER_SECONDS."""

from __future__ import annotations

from holdfast_contract.reasons import Reason
from holdfast_operator.decide import conditions, step_progress
from holdfast_operator.decide.actions import StatusDecision, Wait
from holdfast_operator.decide.ending import IDLE_SECONDS
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.stopping import POLL_SECONDS, stop, stop_outcome


def stop_for_deletion(view: JobView) -> StatusDecision | Wait | None:
    """A job being deleted trains no further; its workers save first."""
    if view.job.deleted_at is None:
        return None
    asked = view.status.save is not None and view.status.save.purpose == "Delete"
    if not asked and view.job.has_finalizer and step_progress.may_train(view) and not conditions.finished(view.status):
        return stop(view, "Delete", Reason.DELETING)
    return Wait(POLL_SECONDS if not may_release(view) else IDLE_SECONDS)


def may_release(view: JobView) -> bool:
    """Whether nothing is owed any more to a job that is being deleted."""
    asked = view.status.save is not None and view.status.save.purpose == "Delete"
    return view.job.deleted_at is not None and (not asked or stop_outcome(view) is not None)
