"""Rule: the user suspends or resumes the job (``spec.suspend``).

suspend: true  ──► save and stop requested ──► outcome known ──► Suspended, pods deleted (``effects``)
suspend: false ──► the old pods are deleted ──► next attempt, in new pods
"""

from __future__ import annotations

from holdfast_contract.reasons import Cause, Condition, Reason
from holdfast_operator.decide import attempts, conditions, step_progress
from holdfast_operator.decide.actions import Event, StatusDecision, Wait
from holdfast_operator.decide.ending import IDLE_SECONDS, close
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.stopping import NOTHING_SAVED, POLL_SECONDS, stop, stop_outcome


def suspend(view: JobView) -> StatusDecision | Wait | None:
    """Suspend: save, stop, delete the pods. A stop that has begun is finished even if the user resumes meanwhile."""
    stopping = view.status.save is not None and view.status.save.purpose == "Suspend"
    suspended = conditions.holds(view.status, Condition.SUSPENDED)
    if not view.spec.suspend and not stopping:
        return _resume_without_old_pods(view) if suspended else None
    if suspended:
        return Wait(IDLE_SECONDS)
    if not stopping and step_progress.may_train(view):
        return stop(view, "Suspend", Reason.SUSPENDING)
    outcome = stop_outcome(view) if stopping else NOTHING_SAVED
    if outcome is None:
        return Wait(POLL_SECONDS)
    status = attempts.finish(view, Cause.USER_REQUEST, message="suspended") if stopping else view.status
    status = close(view, status).model_copy(update={"completion_time": None})
    message = f"the job is suspended and its pods are deleted; {outcome}"
    status = conditions.put(
        view, status, Condition.SUSPENDED, value="True", reason=Reason.SUSPENDED_BY_USER, message=message
    )
    return StatusDecision(status, (Event(Reason.SUSPENDED_BY_USER, message),))


def _resume_without_old_pods(view: JobView) -> StatusDecision | Wait:
    """Pods of before the suspension are deleted first: they were made from the template of that time."""
    left = any(not pod.terminating and not pod.finished for pod in view.observed.pods)
    return Wait(POLL_SECONDS) if left else _resume(view)


def _resume(view: JobView) -> StatusDecision:
    status = conditions.put(view, view.status, Condition.SUSPENDED, value="False", reason=Reason.RESUMED, message="")
    event = Event(Reason.RESUMED, "the user resumed the job")
    if not status.active_attempt:
        return StatusDecision(status, (event,))
    everyone = range(view.spec.replicas)
    decision = attempts.restart(
        view, status, Cause.USER_REQUEST, workers=everyone, nodes=(), why="the user resumed the job"
    )
    return StatusDecision(decision.status, (event, *decision.events), decision.counts)
