"""Conditions: a decision's condition stays until another decision; those that follow from facts are derived each pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast_contract.api import ConditionStatus, TrainingJobStatus
from holdfast_contract.reasons import Condition, Reason
from holdfast_operator.decide import backoff, setbacks
from holdfast_operator.decide.members import JobView

Value = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Stamp:
    """When a condition is set, and for which generation of the spec."""

    now: datetime
    generation: int


ORDER: Final = tuple(Condition)
MAX_MESSAGE: Final = 1024
LONGEST_SILENCE_SECONDS: Final = 1e6


def put(
    at: JobView | Stamp,
    status: TrainingJobStatus,
    kind: Condition,
    *,
    value: Value,
    reason: Reason,
    message: str = "",
) -> TrainingJobStatus:
    """The status with this condition. Its transition time changes only if its value does.

    Args:
        at: the instant and the generation, or a view that has both.
        status: the status to change.
        kind: type of the condition.
        value: status of the condition.
        reason: one word for programs.
        message: a sentence for people; cut to MAX_MESSAGE characters.
    """
    before = get(status, kind)
    since = before.last_transition_time if before is not None and before.status == value else at.now
    generation = at.generation if isinstance(at, Stamp) else at.job.generation
    condition = ConditionStatus(
        type=kind.value,
        status=value,
        reason=reason.value,
        message=message[:MAX_MESSAGE],
        observed_generation=generation,
        last_transition_time=since,
    )
    others = {c.type: c for c in status.conditions} | {kind.value: condition}
    ordered = [others.pop(k.value) for k in ORDER if k.value in others]
    return status.model_copy(update={"conditions": (*ordered, *others.values())})


def get(status: TrainingJobStatus, kind: Condition) -> ConditionStatus | None:
    """The condition; None if it was never set."""
    return next((c for c in status.conditions if c.type == kind.value), None)


def holds(status: TrainingJobStatus, kind: Condition) -> bool:
    """Whether the condition is True."""
    condition = get(status, kind)
    return condition is not None and condition.status == "True"


def finished(status: TrainingJobStatus) -> bool:
    """Whether the job has succeeded or failed, so that nothing starts any more."""
    return holds(status, Condition.SUCCEEDED) or holds(status, Condition.FAILED)


def derive(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with the conditions that follow from facts, and with ``state``, the one word for people."""
    running, why, message = _running(view, status)
    status = put(view, status, Condition.RUNNING, value=running, reason=why, message=message)
    status = _checkpoint(view, status)
    status = _preempted(view, status)
    for kind in (Condition.SUSPENDED, Condition.SUCCEEDED, Condition.FAILED):
        if get(status, kind) is None:
            reason = Reason.NOT_SUSPENDED if kind is Condition.SUSPENDED else Reason.NOT_FINISHED
            status = put(view, status, kind, value="False", reason=reason)
    if get(status, Condition.ADMITTED) is None:
        status = put(view, status, Condition.ADMITTED, value="Unknown", reason=Reason.INSPECTING_STORAGE)
    succeeded = holds(status, Condition.SUCCEEDED)
    good: Value = "True" if running == "True" or succeeded else "False"
    if why is Reason.WORKERS_SILENT:
        good = "Unknown"
    status = put(view, status, Condition.READY, value=good, reason=Reason.COMPLETED if succeeded else why)
    return status.model_copy(update={"state": _state(status)})


def _running(view: JobView, status: TrainingJobStatus) -> tuple[Value, Reason, str]:
    if finished(status):
        done = holds(status, Condition.SUCCEEDED)
        return "False", Reason.COMPLETED if done else Reason(get_reason(status, Condition.FAILED)), ""
    if holds(status, Condition.SUSPENDED):
        return "False", Reason.SUSPENDED_BY_USER, ""
    if view.job.deleted_at is not None:
        return "False", Reason.DELETING, ""
    if status.active_attempt == 0 and status.transition is None:
        refused = get(status, Condition.ADMITTED)
        if refused is not None and refused.status == "False":
            return "False", Reason(refused.reason), refused.message
        ready = status.workers.ready > 0
        reason = Reason.INSPECTING_STORAGE if ready else Reason.WAITING_FOR_WORKERS
        return "False", reason, _missing(view, status)
    if status.transition is not None and not status.transition.training:
        return "False", Reason.WAITING_FOR_WORKERS, "; ".join([*_backoff(view, status), _missing(view, status)])
    return _training(view, status)


def _training(view: JobView, status: TrainingJobStatus) -> tuple[Value, Reason, str]:
    """The condition while trainers of the active attempt may run."""
    silent = _silent(view, status)
    if silent is not None:
        return "Unknown", Reason.WORKERS_SILENT, silent
    if status.workers.training == view.spec.replicas:
        return "True", Reason.TRAINING, f"all {view.spec.replicas} workers train in attempt {status.active_attempt}"
    if status.progress is not None and status.progress.attempt == status.active_attempt and status.end_seen_at:
        return "False", Reason.RECOVERING, "a trainer has ended; the operator determines the cause"
    return "Unknown", Reason.STARTING, f"the trainers of attempt {status.active_attempt} are starting"


def _silent(view: JobView, status: TrainingJobStatus) -> str | None:
    """Which workers have not reported for too long, and since when; None if there are none."""
    unended = [w for w in view.workers if w.pod is not None and not w.pod.finished and not w.pod.terminating]
    silent = [w for w in unended if view.is_silent(w.pod)]
    if not silent:
        return None
    what = f"workers {[w.index for w in silent[:8]]} have not reported since "
    shown = get(status, Condition.RUNNING)
    if shown is not None and shown.message.startswith(what):
        return shown.message  # two clocks give the instant: it must not change by a second in each pass
    seconds = max(view.silent_seconds(w.pod) for w in silent)
    since = view.now - timedelta(seconds=min(seconds, LONGEST_SILENCE_SECONDS))
    return what + since.strftime("%Y-%m-%dT%H:%M:%SZ")


def _backoff(view: JobView, status: TrainingJobStatus) -> Iterator[str]:
    """That the next attempt waits, why, and until when."""
    begins_at = backoff.attempt_begins_at(view.job.uid, status)
    if begins_at is not None:
        until = begins_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        yield f"{status.failures.stepless} attempts in a row completed no step: the next begins not before {until}"


def _missing(view: JobView, status: TrainingJobStatus) -> str:
    """How many workers have reported, and what the others wait for."""
    waiting = [
        f"worker {w.index}: {w.pod.waiting or w.pod.phase}"
        for w in view.under(status).workers
        if w.pod is not None and view.last_report(w.pod) is None and not w.pod.terminating
    ]
    ready = f"{status.workers.ready} of {view.spec.replicas} workers have reported"
    return "; ".join([ready, *waiting[:8], *setbacks.describe(status)])


def _checkpoint(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    newest = status.checkpoint.newest
    errors = [h.report.storage_error for _, h in view.reporting() if h.report.storage_error]
    value: Value = "True" if newest is not None else "False"
    if errors:
        # Storage that takes no save may not give back the newest checkpoint either.
        value = "False" if newest is None else "Unknown"
        reason, message = Reason.SAVE_FAILED, errors[0]
    elif newest is None:
        reason, message = Reason.NO_CHECKPOINT_YET, ""
    else:
        reason, message = Reason.CHECKPOINT_COMMITTED, f"a checkpoint of attempt {newest.attempt} is committed"
    return put(view, status, Condition.CHECKPOINT_VALID, value=value, reason=reason, message=message)


def _preempted(view: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    record = status.preemption
    if record is None or not record.standing or record.notice is None:
        return put(view, status, Condition.PREEMPTED, value="False", reason=Reason.NO_NOTICE)
    ends_at = record.notice.deadline
    deadline = f"deadline {ends_at.strftime('%Y-%m-%dT%H:%M:%SZ')}" if ends_at is not None else "no deadline"
    message = "; ".join([f"notice for node {record.notice.node}: {record.notice.source}, {deadline}", *_unready(view)])
    return put(view, status, Condition.PREEMPTED, value="True", reason=Reason.PREEMPTION_NOTICED, message=message)


def _unready(view: JobView) -> Iterator[str]:
    """What a replacement waits for while training continues."""
    transition = view.status.transition
    if transition is None or not transition.training:
        return
    unready = [w for w in view.workers if w.index in transition.workers and view.last_report(w.incoming) is None]
    if unready and transition.deadline is None:
        yield "training continues until the new pods are ready, or until the machine goes away"
    for worker in unready[:8]:
        why = "not created yet" if worker.incoming is None else worker.incoming.waiting or worker.incoming.phase
        yield f"new pod of worker {worker.index}: {why}"
    yield from setbacks.describe(view.status)


def get_reason(status: TrainingJobStatus, kind: Condition) -> str:
    """The reason of a condition; "" if it was never set."""
    condition = get(status, kind)
    return condition.reason if condition is not None else ""


def _state(status: TrainingJobStatus) -> str:
    """The job's state in one word, for people; no code reads it."""
    if finished(status):
        return "Succeeded" if holds(status, Condition.SUCCEEDED) else "Failed"
    if holds(status, Condition.SUSPENDED):
        return "Suspended"
    if status.save is not None and status.save.purpose == "Suspend":
        return "Suspending"
    if status.preemption is not None and status.preemption.standing and status.active_attempt:
        return "Moving" if status.transition is not None else "Preempted"
    running = get(status, Condition.RUNNING)
    words = {Reason.TRAINING: "Training", Reason.STARTING: "Starting", Reason.RECOVERING: "Recovering"}
    words[Reason.WORKERS_SILENT] = "Unknown"
    if running is None:
        return "Pending"
    if status.active_attempt and status.transition is not None:
        return "Recovering"
    return next((word for reason, word in words.items() if running.reason == reason.value), "Pending")
