"""Rule: before the first attempt, worker 0's agent inspects the run's folder; then the attempt is numbered.

no report ──► worker 0 reports ──► folder unusable, or owned by a live job: refused, inspected again later
                              └──► otherwise: accepted, attempt = highest in the folder + 1
"""

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
"""A pod's name contains the attempt, and the longest job name leaves room for six digits."""
RETRY_SECONDS: Final = 15.0
"""How soon a refused job is checked again."""


def admit(view: JobView) -> StatusDecision | Wait | None:
    """Number the first attempt above every attempt in the run's folder, of this job or an earlier one."""
    if view.status.active_attempt or view.status.transition is not None:
        return None
    found = run_inspection.inspection_of(view)
    if found is None:
        return None
    if found.error:
        return _refuse(view, Reason.STORAGE_UNUSABLE, found.error)
    if found.highest_attempt >= MAX_ATTEMPT:
        allowed = f"allowed: less than {MAX_ATTEMPT}; choose another spec.checkpoint.run"
        message = f"run {view.job.run}: highest attempt: found {found.highest_attempt}, {allowed}"
        return _refuse(view, Reason.STORAGE_UNUSABLE, message)
    owner = found.owner
    foreign = owner is not None and owner.job_uid != view.job.uid
    if owner is not None and foreign and not _may_take_over(view, owner):
        named = f"job {owner.namespace}/{owner.name} (UID {owner.job_uid})"
        hint = "set spec.checkpoint.takeOver: true to continue that run in this job"
        return _refuse(view, Reason.FOREIGN_CHECKPOINT_OWNER, f"run {view.job.run} belongs to {named}; {hint}")
    if foreign and _was_refused(view):
        return _inspect_again(view)
    return _number(view, found, takes_over=foreign)


def _may_take_over(view: JobView, owner: Owner) -> bool:
    """Whether the user allows it, or the owner no longer exists or has finished."""
    other = view.observed.other_owner
    gone = other is not None and other.job_uid == owner.job_uid and not other.alive
    return view.spec.checkpoint.take_over or gone


def _was_refused(view: JobView) -> bool:
    before = conditions.get(view.status, Condition.ADMITTED)
    return before is not None and before.reason == Reason.FOREIGN_CHECKPOINT_OWNER


def _inspect_again(view: JobView) -> StatusDecision:
    """The inspection was made while the other job still trained: a new number makes the agent inspect again."""
    message = f"the job that owned run {view.job.run} is over; worker 0 inspects the run's folder again"
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
    content = f"{len(found.candidates)} checkpoints, highest attempt {found.highest_attempt}"
    message = f"run {view.job.run} is accepted: it has {content}"
    status = conditions.put(view, status, Condition.ADMITTED, value="True", reason=Reason.ACCEPTED, message=message)
    begun = attempts.begin_if_ready(view, status)
    events = (Event(Reason.ACCEPTED, message),)
    return StatusDecision(status, events) if begun is None else StatusDecision(begun.status, (*events, *begun.events))
