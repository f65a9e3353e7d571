"""Beginning and end of a job: completion, failure, suspension, deletion. Each rule begins with its own guard."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Bucket, Cause, Condition, Reason
from holdfast_operator.decide import attempts, causes, conditions, goodput, progress, saves
from holdfast_operator.decide.actions import Event, Turn, Wait
from holdfast_operator.decide.members import View

DEFAULT_GRACE_SECONDS: Final = 30
COMPLETION_SECONDS: Final = 60.0
"""How long the other workers may go on after the first has finished training."""
IDLE_SECONDS: Final = 300.0
"""How often a job in which nothing is expected to happen is looked at."""
POLL_SECONDS: Final = 0.5
"""How soon a wait that reports usually end is checked again, should a wake-up get lost."""
MESSAGE_CHARACTERS: Final = 512
"""How much of a trainer's last lines goes into a condition; status.lastEnd.lastLines has more."""

_FATAL: Final = {
    int(ExitCode.NO_VALID_CHECKPOINT): Reason.NO_VALID_CHECKPOINT,
    int(ExitCode.FOREIGN_RUN): Reason.FOREIGN_CHECKPOINT_OWNER,
}


def grace_seconds(view: View) -> int:
    """The workers' grace period."""
    return view.spec.template.spec.termination_grace_period_seconds or DEFAULT_GRACE_SECONDS


def _stop(view: View, purpose: saves.Purpose, reason: Reason) -> Turn:
    deadline = view.now + timedelta(seconds=grace_seconds(view))
    event = Event(reason, f"the workers are asked to save and stop within {grace_seconds(view)} s")
    return Turn(saves.ask(view, purpose, deadline), (event,))


def _stop_is_over(view: View) -> str | None:
    """What became of the save before a stop; None while that is open."""
    if view.status.save is None:
        return "no trainer ran, so nothing was saved"
    verdict = saves.judge(view, view.status.save)
    if verdict is None:
        return None
    return f"saved step {verdict.step}" if verdict.good else f"not saved ({verdict.outcome.value}): {verdict.reason}"


# ---- deletion: an orderly save first, never longer than the grace period and LATE_ANSWER_SECONDS


def stop_for_deletion(view: View) -> Turn | Wait | None:
    """A job being deleted trains no further; its workers save first."""
    if view.job.deleted_at is None:
        return None
    asked = view.status.save is not None and view.status.save.purpose == "Delete"
    if not asked and view.job.has_finalizer and progress.may_train(view) and not conditions.finished(view.status):
        return _stop(view, "Delete", Reason.DELETING)
    return Wait(POLL_SECONDS if not released(view) else IDLE_SECONDS)


def released(view: View) -> bool:
    """Whether nothing is owed any more to a job that is being deleted."""
    asked = view.status.save is not None and view.status.save.purpose == "Delete"
    return view.job.deleted_at is not None and (not asked or _stop_is_over(view) is not None)


# ---- completion


def rest_if_finished(view: View) -> Wait | None:
    """A finished job stays as it is until it is deleted."""
    if not conditions.finished(view.status):
        return None
    left = ttl_left_seconds(view)
    return Wait(IDLE_SECONDS if left is None else max(0.0, left))


def ttl_left_seconds(view: View) -> float | None:
    """Seconds until a finished job is deleted; None: never."""
    ttl, since = view.spec.ttl_seconds_after_finished, view.status.completion_time
    if ttl is None or since is None or not conditions.finished(view.status):
        return None
    return ttl - (view.now - since).total_seconds()


def complete(view: View) -> Turn | None:
    """Training has reached its end in every worker. One that was torn down by the first to finish counts as done."""
    if not view.status.active_attempt or view.preparing:
        return None
    found = causes.ends(view)
    done = [e for e in found if e.done]
    if not done or len(found) < view.spec.replicas or not all(e.done or e.aborted for e in found):
        return None
    step = progress.reached(view)
    message = f"training reached its end at step {step} in attempt {view.status.active_attempt}"
    status = _over(view, view.status)
    if status.progress is not None:  # the last one that was written may be some steps old
        status = status.model_copy(update={"progress": status.progress.model_copy(update={"step": step})})
    status = conditions.put(view, status, Condition.SUCCEEDED, value="True", reason=Reason.COMPLETED, message=message)
    return Turn(status, (Event(Reason.COMPLETED, message),))


def _over(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    record = status.preemption
    return status.model_copy(
        update={
            "completion_time": view.now,
            "transition": None,
            "save": None,
            "end_seen_at": None,
            "preemption": record.model_copy(update={"standing": False}) if record is not None else None,
        }
    )


# ---- failure


def fail(view: View, status: TrainingJobStatus, reason: Reason, message: str) -> Turn:
    """The job ends without success. Its checkpoints stay."""
    failed = conditions.put(view, _over(view, status), Condition.FAILED, value="True", reason=reason, message=message)
    return Turn(failed, (Event(reason, message, "Warning"),))


def fail_for_good(view: View) -> Turn | None:
    """Nothing that another attempt could mend: too old, no valid checkpoint left, a run that belongs to another job."""
    limit = view.spec.active_deadline_seconds
    if limit is not None and active_seconds(view) >= limit:
        status = attempts.finish(view, Cause.USER_REQUEST, message="activeDeadlineSeconds is over")
        return fail(view, status, Reason.DEADLINE_EXCEEDED, f"activeDeadlineSeconds ({limit}) are over")
    if not view.status.active_attempt or view.preparing:
        return None
    for end in causes.ends(view):
        if end.code in _FATAL:
            status = attempts.finish(view, Cause.FAILURE, message=end.sentence, end=end)
            return fail(view, status, _FATAL[end.code], _last_sentence(end.last_lines) or end.sentence)
    return None


def _last_sentence(last_lines: str) -> str:
    """The last lines of a trainer that fit a condition's message, the first of them whole; the last one in any case.

    Of a Python traceback only what comes after its last frame: the error itself.
    """
    lines = last_lines.strip().splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    if frames:
        error = (i for i in range(frames[-1] + 1, len(lines)) if not lines[i].startswith(" "))
        lines = lines[next(error, frames[-1]) :]
    while len(lines) > 1 and len("\n".join(lines)) > MESSAGE_CHARACTERS:
        lines.pop(0)
    return "\n".join(lines)[-MESSAGE_CHARACTERS:]


def active_seconds(view: View) -> float:
    """The job's age without the time in which it was suspended."""
    suspended = goodput.milliseconds(view.status).get(Bucket.SUSPENDED.value, 0) / 1000
    until = view.status.goodput.accounted_until
    if conditions.holds(view.status, Condition.SUSPENDED) and until is not None:
        suspended += (view.now - until).total_seconds()
    return (view.now - goodput.begun(view)).total_seconds() - suspended


# ---- suspension


def suspend(view: View) -> Turn | Wait | None:
    """The user wants the pods back: save, stop, release. A stop that has begun is carried through."""
    stopping = view.status.save is not None and view.status.save.purpose == "Suspend"
    suspended = conditions.holds(view.status, Condition.SUSPENDED)
    if not view.spec.suspend and not stopping:
        return _resume(view) if suspended else None
    if suspended:
        return Wait(IDLE_SECONDS)
    if not stopping and progress.may_train(view):
        return _stop(view, "Suspend", Reason.SUSPENDING)
    outcome = _stop_is_over(view) if stopping else "no trainer ran, so nothing was saved"
    if outcome is None:
        return Wait(POLL_SECONDS)
    status = attempts.finish(view, Cause.USER_REQUEST, message="suspended") if stopping else view.status
    status = _over(view, status).model_copy(update={"completion_time": None})
    status = conditions.put(
        view, status, Condition.SUSPENDED, value="True", reason=Reason.SUSPENDED_BY_USER, message=outcome
    )
    return Turn(status, (Event(Reason.SUSPENDED_BY_USER, outcome),))


def _resume(view: View) -> Turn:
    status = conditions.put(view, view.status, Condition.SUSPENDED, value="False", reason=Reason.RESUMED, message="")
    event = Event(Reason.RESUMED, "the job goes on")
    if not status.active_attempt:
        return Turn(status, (event,))
    everyone = range(view.spec.replicas)
    turn = attempts.restart(view, status, Cause.USER_REQUEST, workers=everyone, nodes=(), why="resumed by the user")
    return Turn(turn.status, (event, *turn.events), turn.counts)
