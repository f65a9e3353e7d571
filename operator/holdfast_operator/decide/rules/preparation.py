"""Rule: while no attempt trains, prepare the next one, and begin it once every worker's agent has reported.

A pod that is lost, finishes or finds no node during the preparation is replaced under a new attempt number, since pods
are named after the attempt. The inspection of the run's folder before the first attempt is prepared in the same way.
"""

from __future__ import annotations

from typing import Final

from holdfast_contract.reasons import Reason
from holdfast_operator.decide import attempts, causes, ending, failure_budget, notices
from holdfast_operator.decide.actions import Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView

MUTE_SECONDS: Final = 120.0
"""How long an agent that took part may be silent during a preparation before its worker gets a new pod."""
PLACE_SECONDS: Final = 60.0
"""How long a pod may stay unscheduled before it is replaced by one that avoids only the nodes doomed now."""


def prepare(view: JobView) -> StatusDecision | None:
    """Begin the prepared attempt if every worker is ready; replace pods that have become unusable."""
    before_first = not view.status.active_attempt and view.status.transition is None
    if not view.preparing and not before_first:
        return None
    number = view.status.attempt
    new = [w for w in view.workers if w.pod is not None and w.pod.created_in_attempt == number]
    failed = [e for e in causes.ends(view) if e.worker in new and e.worker.pod is not None and e.worker.pod.finished]
    unusable = [w.index for w in new if not view.usable(w.pod)]
    if failed:
        return _failed_before_start(view, causes.culprit(tuple(failed)), unusable)
    if unusable:
        return attempts.renumber(view, unusable)
    mute = _mute(view)
    if mute:
        return attempts.renumber(view, mute)
    unscheduled = _unscheduled(view)
    if unscheduled:
        return attempts.renumber(view, unscheduled, anywhere=True)
    return attempts.begin_if_ready(view, view.status)


def _mute(view: JobView) -> list[int]:
    """Workers whose agents have taken part and do not report any more, although their pods run on ready nodes.

    An agent that is merely cut off exits as orphaned. One that is frozen never does, and the attempt would wait for it.
    """
    began = view.status.transition.began_at if view.status.transition is not None else None
    if began is None or (view.now - began).total_seconds() < MUTE_SECONDS:
        return []
    running = [(w.index, w.pod) for w in view.workers if w.pod is not None and w.pod.phase == "Running"]
    return [
        index
        for index, pod in running
        if view.usable(pod)
        and (view.last_report(pod) is not None or pod.created_in_attempt <= view.status.active_attempt)
        and view.silent_seconds(pod) >= MUTE_SECONDS
    ]


def patience_left_seconds(view: JobView) -> float:
    """Seconds until an unscheduled pod may be replaced by one that avoids fewer nodes; 0: now."""
    transition = view.status.transition
    if transition is None or transition.training or transition.began_at is None:
        return 0.0
    return max(0.0, PLACE_SECONDS - (view.now - transition.began_at).total_seconds())


def _unscheduled(view: JobView) -> list[int]:
    """Workers whose pods have been unscheduled for too long and avoid nodes that are not doomed any more.

    A pod avoids the nodes that were doomed when it was created, and its affinity never changes: such a node may be the
    only one with room now. The scheduler itself respects cordons and taints, and a new notice replaces the pod again.
    """
    if view.status.transition is None or patience_left_seconds(view) > 0:
        return []
    doomed = notices.doomed_nodes(view)
    pods = [(w.index, w.pod) for w in view.workers if w.pod is not None]
    return [index for index, pod in pods if not pod.node and pod.avoids - doomed]


def _failed_before_start(view: JobView, end: End, unusable: list[int]) -> StatusDecision:
    """A pod ended before its attempt began. A failure of its program counts; what the cluster does to it does not."""
    if not end.cause.budgeted:
        return attempts.renumber(view, unusable)
    message = f"before its attempt began: {end.sentence}"
    record = attempts.end_record(view.status.attempt, end.cause, message, end)
    status = failure_budget.charge(view, view.status.model_copy(update={"last_end": record}), end.cause)
    event = Event(Reason.WORKER_CRASHED, message, "Warning")
    spent = failure_budget.exhausted(view, status)
    if spent is not None:
        decision = ending.fail(view, status, *spent)
    else:
        decision = attempts.renumber(view.under(status), unusable)
    return StatusDecision(decision.status, (event, *decision.events), decision.counts)
