"""Before the first attempt: look into the run's folder, settle whose it is, number the attempt."""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import TrainingJobStatus, Transition
from holdfast_contract.manifest import Owner
from holdfast_contract.reasons import Condition, Reason
from holdfast_contract.sync import Inspection
from holdfast_operator.decide import attempts, conditions, requested_saves, run_inspection
from holdfast_operator.decide.actions import Event, StatusDecision, Wait
from holdfast_operator.decide.members import JobView

MAX_ATTEMPT: Final = 999_000
"""Pods are named after the attempt; the longest job name leaves room for six digits."""
RETRY_SECONDS: Final = 15.0
"""How often a refused run folder is looked at again."""


def admit(view: JobView) -> StatusDecision | Wait | None:
    """The first attempt is numbered above every attempt that the run has seen, under this job or an earlier one."""
    if view.status.active_attempt or view.status.transition is not None:
        return None
    found = run_inspection.inspection_of(view)
    if found is None:
        return None
    if found.error:
        return _refuse(view, Reason.STORAGE_UNUSABLE, found.error)
    if found.highest_attempt >= MAX_ATTEMPT:
        message = f"run {view.job.run}: found attempt {found.highest_attempt}, allowed: less than {MAX_ATTEMPT}"
        return _refuse(view, Reason.STORAGE_UNUSABLE, message)
    owner = found.owner
    foreign = owner is not None and owner.job_uid != view.job.uid
    if owner is not None and foreign and not _may_take_over(view, owner):
        named = f"job {owner.namespace}/{owner.name} (UID {owner.job_uid})"
        hint = "set spec.checkpoint.takeOver to continue it all the same"
        return _refuse(view, Reason.FOREIGN_CHECKPOINT_OWNER, f"run {view.job.run} belongs to {named}; {hint}")
    if foreign and _was_refused(view):
        return _look_again(view)
    return _number(view, found, takes_over=foreign)


def _may_take_over(view: JobView, owner: Owner) -> bool:
    other = view.observed.other_owner
    gone = other is not None and other.job_uid == owner.job_uid and not other.alive
    return view.spec.checkpoint.take_over or gone


def _was_refused(view: JobView) -> bool:
    before = conditions.get(view.status, Condition.ADMITTED)
    return before is not None and before.reason == Reason.FOREIGN_CHECKPOINT_OWNER


def _look_again(view: JobView) -> StatusDecision:
    """What was found while the other job still trained is out of date: a new number makes the agent look anew."""
    message = f"the job that run {view.job.run} belonged to is gone; its folder is looked into once more"
    status = view.status.model_copy(update={"attempt": view.status.attempt + 1})
    reason = Reason.INSPECTING_STORAGE
    return StatusDecision(
        conditions.put(view, status, Condition.ADMITTED, value="Unknown", reason=reason, message=message)
    )


def _refuse(view: JobView, reason: Reason, message: str) -> StatusDecision | Wait:
    before = conditions.get(view.status, Condition.ADMITTED)
    same = before is not None and (before.status, before.reason) == ("False", reason.value)
    if same and before is not None and before.message == message[: conditions.MAX_MESSAGE]:
        return Wait(RETRY_SECONDS)
    status = conditions.put(view, view.status, Condition.ADMITTED, value="False", reason=reason, message=message)
    return StatusDecision(status, () if same else (Event(reason, message, "Warning"),))


def _number(view: JobView, found: Inspection, *, takes_over: bool) -> StatusDecision:
    number = max(view.status.attempt, found.highest_attempt) + 1
    newest = max(found.candidates, default=None)
    known: TrainingJobStatus = view.status
    status = known.model_copy(
        update={
            "attempt": number,
            "transition": Transition(attempt=number, began_at=view.now),
            "take_over_attempt": number if takes_over else None,
            "checkpoint": known.checkpoint.model_copy(
                update={"newest": requested_saves.to_status_point(newest) if newest is not None else None}
            ),
        }
    )
    message = f"run {view.job.run}: {len(found.candidates)} checkpoints, highest attempt {found.highest_attempt}"
    status = conditions.put(view, status, Condition.ADMITTED, value="True", reason=Reason.ACCEPTED, message=message)
    begun = attempts.begin_if_ready(view, status)
    events = (Event(Reason.ACCEPTED, message),)
    return StatusDecision(status, events) if begun is None else StatusDecision(begun.status, (*events, *begun.events))
