"""Rules: a finished job does not change, and a job whose workers all finished training has succeeded."""

from __future__ import annotations

from holdfast_contract.reasons import Cause, Condition, Reason
from holdfast_operator.decide import attempts, causes, conditions, step_progress
from holdfast_operator.decide.actions import Event, StatusDecision, Wait
from holdfast_operator.decide.ending import IDLE_SECONDS, close, fail, ttl_left_seconds
from holdfast_operator.decide.members import JobView


def stay_finished(view: JobView) -> Wait | None:
    """A job that has succeeded or failed stays as it is until it is deleted."""
    if not conditions.finished(view.status):
        return None
    left = ttl_left_seconds(view)
    return Wait(IDLE_SECONDS if left is None else max(0.0, left))


def complete(view: JobView) -> StatusDecision | None:
    """The job succeeds when every worker has finished training.

    A trainer that aborted because another one had finished and left counts as finished. Training of which no checkpoint
    exists is lost, so such a job has failed: a further attempt of the same program would end in the same way.
    """
    if not view.status.active_attempt or view.preparing:
        return None
    found = causes.ends(view)
    done = [e for e in found if e.done]
    if not done or len(found) < view.spec.replicas or not all(e.done or e.aborted for e in found):
        return None
    step = step_progress.reached(view)
    message = f"training finished at step {step} in attempt {view.status.active_attempt}"
    if view.status.checkpoint.newest is None:
        if step > 0:
            return _fail_without_checkpoint(view, message)
        message += "; no step was reported, and no checkpoint exists"
    status = close(view, view.status)
    if status.progress is not None:  # the stored step may be some seconds old
        status = status.model_copy(update={"progress": status.progress.model_copy(update={"step": step})})
    status = conditions.put(view, status, Condition.SUCCEEDED, value="True", reason=Reason.COMPLETED, message=message)
    return StatusDecision(status, (Event(Reason.COMPLETED, message),))


def _fail_without_checkpoint(view: JobView, finished: str) -> StatusDecision:
    message = f"{finished}, but no checkpoint was ever committed: nothing of it is kept"
    status = attempts.finish(view, Cause.FAILURE, message=message)
    return fail(view, status, Reason.NO_VALID_CHECKPOINT, message)
