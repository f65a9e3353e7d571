"""The next attempt, or the first look into the run's folder, is being prepared: begin it, or mend what became useless."""

from __future__ import annotations

from typing import Final

from holdfast_contract.reasons import Reason
from holdfast_operator.decide import attempts, causes, ending, failure_budget, notices
from holdfast_operator.decide.actions import Event, StatusDecision
from holdfast_operator.decide.causes import End
from holdfast_operator.decide.members import JobView

PLACE_SECONDS: Final = 60.0
"""How long a pod may wait for a place that meets the notices of the time at which it was made."""


def prepare(view: JobView) -> StatusDecision | None:
    """While the next attempt (or the first look into the run's folder) is being prepared: begin it, or mend it."""
    waiting_for_first = not view.status.active_attempt and view.status.transition is None
    if not view.preparing and not waiting_for_first:
        return None
    number = view.status.attempt
    new = [w for w in view.workers if w.pod is not None and w.pod.created_in_attempt == number]
    failed = [e for e in causes.ends(view) if e.worker in new and e.worker.pod is not None and e.worker.pod.finished]
    if failed:
        return _failed_before_start(view, causes.culprit(tuple(failed)))
    useless = [w.index for w in new if not view.usable(w.pod)]
    if useless:
        return attempts.renumber(view, useless)
    barred = _barred(view)
    if barred:
        return attempts.renumber(view, barred, anywhere=True)
    return attempts.begin_if_ready(view, view.status)


def patience_left_seconds(view: JobView) -> float:
    """Seconds until a pod that finds no place may also go where this preparation did not want it; 0: now."""
    transition = view.status.transition
    if transition is None or transition.training or transition.began_at is None:
        return 0.0
    return max(0.0, PLACE_SECONDS - (view.now - transition.began_at).total_seconds())


def _barred(view: JobView) -> list[int]:
    """Workers whose pods find no place for too long and are kept off nodes that are no longer known to be doomed.

    A pod is made for the notices of its time, and its affinity never changes: a node that was cordoned then may be the
    only one with room now. The scheduler itself heeds cordons and taints, and a notice that comes again moves it again.
    """
    if view.status.transition is None or patience_left_seconds(view) > 0:
        return []
    doomed = notices.doomed_nodes(view)
    pods = [(w.index, w.pod) for w in view.workers if w.pod is not None]
    return [index for index, pod in pods if not pod.node and pod.avoids - doomed]


def _failed_before_start(view: JobView, end: End) -> StatusDecision:
    """A pod ended before its attempt began: counted like any end of its cause, so that it cannot go on for ever."""
    status = failure_budget.charge(view, view.status, end.cause)
    event = Event(Reason.WORKER_CRASHED, f"{end.sentence} before its attempt began", "Warning")
    spent = failure_budget.exhausted(view, status) if end.cause.budgeted else None
    if spent is not None:
        decision = ending.fail(view, status, *spent)
    else:
        decision = attempts.renumber(view.under(status), [end.worker.index])
    return StatusDecision(decision.status, (event, *decision.events), decision.counts)
