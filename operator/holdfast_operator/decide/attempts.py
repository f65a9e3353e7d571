"""Attempts: how one ends, how the next is prepared and how it begins.

Every function here returns a status: a number grows in it before any pod or process of that attempt exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast_contract.api import AttemptEnd, Strategy, TrainingJobStatus, Transition
from holdfast_contract.api_status import MAX_LAST_LINES, MAX_MESSAGE
from holdfast_contract.reasons import Cause, Metric, Reason
from holdfast_operator.decide import failures, goodput, progress, storage
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView

FREE_ATTEMPTS: Final = 3
"""How many attempts in a row may end without a step before the next one has to wait."""
LONGEST_PAUSE_SECONDS: Final = 60.0


def finish(view: JobView, cause: Cause, *, message: str, end: End | None = None) -> TrainingJobStatus:
    """The status once the active attempt is over: its end is written down and its lost steps are accounted."""
    record = AttemptEnd(
        attempt=view.status.active_attempt,
        cause=cause,
        message=message[:MAX_MESSAGE],
        worker=end.worker.index if end is not None else None,
        exit_code=end.code if end is not None else None,
        last_lines=end.last_lines[-MAX_LAST_LINES:] if end is not None else "",
    )
    lost = lost_steps(view)
    status = goodput.charge_rework(view, lost)
    counted = failures.after(status, cause, lost_steps=lost)
    return status.model_copy(update={"last_end": record, "end_seen_at": None, "save": None, "failures": counted})


def lost_steps(view: JobView) -> int:
    """Steps of the active attempt that are not in any committed checkpoint."""
    newest = view.status.checkpoint.newest
    return max(0, progress.reached(view) - (newest.step if newest is not None else 0))


def restart(
    view: JobView, status: TrainingJobStatus, cause: Cause, *, workers: Iterable[int], nodes: Iterable[str], why: str
) -> StatusDecision:
    """The next attempt, for a cause that is counted here and nowhere else.

    ``workers`` get new pods away from ``nodes``; the others start anew in place. Where a replacement was being prepared,
    the attempt that it has numbered already is this one.
    """
    transition = status.transition
    number = transition.attempt if transition is not None and transition.training else status.attempt + 1
    indices = set(workers) | set(transition.workers if transition is not None else ())
    if view.spec.recovery.strategy is Strategy.RECREATE:
        indices = set(range(view.spec.replicas))
    following = Transition(
        attempt=number,
        cause=cause,
        workers=tuple(sorted(indices)),
        nodes=tuple(sorted({*nodes, *(transition.nodes if transition is not None else ())})),
        began_at=view.now,
    )
    restarts = dict(status.restarts)
    restarts[cause.value] = restarts.get(cause.value, 0) + 1
    status = status.model_copy(
        update={
            "attempt": number,
            "transition": following,
            "restarts": restarts,
            "restarts_total": sum(restarts.values()),
        }
    )
    lost = status.goodput.steps_lost - view.status.goodput.steps_lost
    counts = (Count(Metric.RESTARTS, labels={"cause": cause.value}), Count(Metric.STEPS_LOST, float(lost)))
    event = Event(Reason.RECOVERING, f"attempt {number} follows ({cause.value}): {why}")
    begun = begin_if_ready(view, status)
    if begun is None:
        return StatusDecision(status, (event,), counts)
    return StatusDecision(begun.status, (event, *begun.events), counts)


def backoff_left_seconds(view: JobView, status: TrainingJobStatus) -> float:
    """Seconds until the prepared attempt may begin. Attempts that reach no step, whatever ends them, slow down."""
    transition, known = status.transition, status.progress
    if transition is None or transition.cause is None or transition.began_at is None:
        return 0.0
    stepless = status.restarts_total if known is None else transition.attempt - known.attempt
    stepped = known is not None and known.attempt >= status.active_attempt
    if stepped or stepless <= FREE_ATTEMPTS:
        return 0.0
    pause = min(LONGEST_PAUSE_SECONDS, 2.0 ** min(stepless - FREE_ATTEMPTS, 10))
    return pause - (view.now - transition.began_at).total_seconds()


def begin_if_ready(view: JobView, status: TrainingJobStatus) -> StatusDecision | None:
    """The prepared attempt begins, if every worker can start a trainer now."""
    transition = status.transition
    if transition is None or transition.training or not view.under(status).gang_ready:
        return None
    if backoff_left_seconds(view, status) > 0:
        return None
    newest = status.checkpoint.newest
    if storage.must_be_looked_into(view.under(status)):
        found = storage.inspection_of(view.under(status))
        if found is None:
            return None
        newest = storage.newest(view, status, found)
    claimed = view.status.progress is not None and view.status.progress.attempt >= (status.take_over_attempt or 0)
    takes_over = status.take_over_attempt is not None and not claimed
    begun = status.model_copy(
        update={
            "active_attempt": transition.attempt,
            "take_over_attempt": transition.attempt if takes_over else status.take_over_attempt,
            "transition": None,
            "end_seen_at": None,
            "failures": failures.at_begin(status),
            "checkpoint": status.checkpoint.model_copy(update={"newest": newest, "pinned": newest, "restored": None}),
        }
    )
    origin = f"from attempt {newest.attempt}, step {newest.step}" if newest is not None else "from the beginning"
    kept = "in new pods" if transition.cause is None else "in place"
    places = f"new pods for workers {list(transition.workers)}" if transition.workers else kept
    reason = Reason.ATTEMPT_STARTED if transition.workers or transition.cause is None else Reason.RESTARTING_IN_PLACE
    return StatusDecision(begun, (Event(reason, f"attempt {transition.attempt} begins {origin}, {places}"),))


def renumber(view: JobView, workers: Iterable[int], *, anywhere: bool = False) -> StatusDecision:
    """The preparation goes on under a new number: these workers' pods have become useless before the attempt began.

    ``anywhere``: the new ones may go to any node that is not doomed now.
    """
    status = view.status
    number = status.attempt + 1
    update: dict[str, object] = {"attempt": number}
    transition = status.transition
    if transition is not None:
        usable = {w.index for w in view.workers if view.usable(w.incoming if transition.training else w.pod)}
        again = set(workers) | (set(transition.workers) if transition.training else set(transition.workers) - usable)
        nodes = () if anywhere else transition.nodes
        changes = {"attempt": number, "workers": tuple(sorted(again)), "nodes": nodes}
        update["transition"] = transition.model_copy(update=changes)
    named = ", ".join(str(w) for w in sorted(workers))
    why = "finds no place away from nodes that were doomed" if anywhere else "cannot be used"
    message = f"attempt {number} takes over the preparation: the pod of worker {named} {why}"
    return StatusDecision(status.model_copy(update=update), (Event(Reason.WORKERS_PENDING, message),))
