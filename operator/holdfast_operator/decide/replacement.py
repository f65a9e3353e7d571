"""Replacing workers on doomed nodes while training continues: new pods first, then the switch.

replacement due ──► next attempt numbered ──► new pods ready, or time is up ──► save and stop ──► next attempt begins
                              │
                              └── notices withdrawn: replacement cancelled

Only an imminent notice limits the time. Under a planned one alone (a cordon, a maintenance), training continues until the
new pods are ready, for as long as the machine stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast_contract.api import TrainingJobStatus, Transition
from holdfast_contract.reasons import Cause, Metric, Reason, SaveOutcome
from holdfast_operator.decide import attempts, notice_memory, requested_saves, step_progress
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notices import Notice, Urgency, find

LEAD_SECONDS: Final = 300.0
"""How long before a planned notice's deadline its replacement begins: time to schedule the new pods."""
SWITCH_MARGIN_SECONDS: Final = 8.0
"""How long before the deadline the switch happens even if the new pods are not ready."""
SHORTEST_SAVE_SECONDS: Final = 1.0
"""With less time than this, no save is requested before the switch."""
SWITCH_SAVE_SECONDS: Final = 60.0
"""Longest time for the save before the switch, if the deadline is far away."""


def replace_workers(view: JobView, standing: Sequence[Notice]) -> StatusDecision | None:
    """Begin the replacement when it is due, keep it usable, and switch when the new pods are ready or time is up."""
    binding = [n for n in standing if n.urgency is not Urgency.ADVISORY]
    transition, save = view.status.transition, view.status.save
    if transition is None:
        return _prepare(view, binding) if binding and replacement_due_seconds(view, binding) <= 0 else None
    if save is not None:
        verdict = requested_saves.judge(view, save)
        return None if verdict is None else _switch(view, requested_saves.describe(verdict))
    if not binding:
        return cancel_replacement(view)
    changed = _changed(transition, binding)
    if changed is not None:
        return StatusDecision(view.status.model_copy(update={"transition": changed}), _widened(transition, changed))
    newest = ((w.index, w.incoming) for w in view.workers if w.incoming is not None)
    broken = [i for i, pod in newest if pod.created_in_attempt == transition.attempt and not view.usable(pod)]
    if broken:
        return attempts.renumber(view, broken)
    late = switch_left_seconds(view, transition) <= 0
    return _save_and_stop(view, transition) if late or _replacements_ready(view, transition) else None


def replacement_due_seconds(view: JobView, binding: Sequence[Notice]) -> float:
    """Seconds until the replacement begins: 0, unless all notices are planned ones for a later time."""
    if any(n.urgency is Urgency.IMMINENT for n in binding):
        return 0.0
    left = ((n.deadline - view.now).total_seconds() - LEAD_SECONDS if n.deadline is not None else 0.0 for n in binding)
    return min(left, default=0.0)


def switch_left_seconds(view: JobView, transition: Transition) -> float:
    """Seconds until the latest instant of the switch; infinite if the new pods must be ready."""
    if transition.deadline is None:
        return math.inf
    return (transition.deadline - view.now).total_seconds() - SWITCH_MARGIN_SECONDS


def _latest_switch(binding: Sequence[Notice]) -> datetime | None:
    """When the switch happens at the latest. A planned notice alone never stops trainers that have no new pods."""
    return min((n.deadline for n in binding if n.urgency is Urgency.IMMINENT and n.deadline), default=None)


def _prepare(view: JobView, binding: Sequence[Notice]) -> StatusDecision:
    """Number the next attempt and prepare it while the active one still trains."""
    status = view.status
    number = status.attempt + 1
    workers = tuple(sorted({i for n in binding for i in n.workers}))
    nodes = tuple(sorted({n.node for n in binding if n.avoid}))
    transition = Transition(
        attempt=number,
        cause=Cause.PREEMPTION,
        training=True,
        workers=workers,
        nodes=nodes,
        began_at=view.now,
        deadline=_latest_switch(binding),
    )
    places = f", not on nodes {list(nodes)}" if nodes else ""
    pods = f"new pods for workers {list(workers)}{places}"
    message = f"attempt {number} is prepared while attempt {status.active_attempt} trains: {pods}"
    event = Event(Reason.WORKERS_PENDING, message)
    return StatusDecision(status.model_copy(update={"attempt": number, "transition": transition}), (event,))


def _changed(transition: Transition, binding: Sequence[Notice]) -> Transition | None:
    """The preparation with the workers and the deadline of the notices that stand now; None if they are the same."""
    wider = transition.model_copy(
        update={
            "workers": tuple(sorted({*transition.workers, *(i for n in binding for i in n.workers)})),
            "nodes": tuple(sorted({*transition.nodes, *(n.node for n in binding if n.avoid)})),
            "deadline": _latest_switch(binding),
        }
    )
    return None if wider == transition else wider


def _widened(before: Transition, after: Transition) -> tuple[Event, ...]:
    """A further notice affects further workers: they are replaced in the same switch."""
    if after.workers == before.workers:
        return ()
    message = f"a further notice: workers {list(after.workers)} are now replaced together"
    return (Event(Reason.PREEMPTION_NOTICED, message, "Warning"),)


def _replacements_ready(view: JobView, transition: Transition) -> bool:
    """Whether every worker of the next attempt can start now: waiting after the switch would cost as much as a crash."""
    return all(view.ready(w.incoming if w.index in transition.workers else w.pod) for w in view.workers)


def _save_and_stop(view: JobView, transition: Transition) -> StatusDecision:
    """Save the steps since the notice and stop the trainers, so that the switch loses no step."""
    fresh = step_progress.is_saved(view)
    deadline = view.now + timedelta(seconds=SWITCH_SAVE_SECONDS)
    if transition.deadline is not None:
        deadline = min(deadline, transition.deadline - timedelta(seconds=requested_saves.LATE_ANSWER_SECONDS))
    left = (deadline - view.now).total_seconds()
    if fresh or left < SHORTEST_SAVE_SECONDS or next(view.training(), None) is None:
        return _switch(view, "every step was saved already" if fresh else "no time was left to save the last steps")
    return StatusDecision(requested_saves.request_save(view, "Switch", deadline))


def _switch(view: JobView, outcome: str) -> StatusDecision:
    """End the active attempt, count a preemption, and continue with the prepared attempt."""
    transition = view.status.transition
    record = view.status.preemption
    workers = transition.workers if transition is not None else ()
    message = f"workers {list(workers)} move to new pods because of a preemption notice; {outcome}"
    status: TrainingJobStatus = attempts.finish(view, Cause.PREEMPTION, message=message)
    closed = record.model_copy(update={"standing": False}) if record is not None else None
    status = status.model_copy(update={"preemption": closed})
    decision = attempts.restart(view, status, Cause.PREEMPTION, workers=workers, nodes=(), why=message)
    return StatusDecision(decision.status, (Event(Reason.WORKER_MOVED, message), *decision.events), decision.counts)


def cancel_replacement(view: JobView) -> StatusDecision:
    """The notices were withdrawn: cancel the replacement. Training was not interrupted; a committed save stays.

    Advisory notices may still stand: they replace nobody.
    """
    record = view.status.preemption
    advisory = notice_memory.remember(view, find(view))
    update: dict[str, object] = {"standing": False}
    counts: tuple[Count, ...] = ()
    if record is not None and record.outcome is SaveOutcome.PENDING and not advisory:
        update |= {"outcome": SaveOutcome.CANCELLED, "reason": "the notice was withdrawn"}
        counts = (Count(Metric.PREEMPTION_SAVES, labels={"outcome": SaveOutcome.CANCELLED.value}),)
    closed = record.model_copy(update=update) if record is not None else None
    status = attempts.call_off(view, view.status, (w.index for w in view.workers))
    status = status.model_copy(
        update={"preemption": closed, "notices": (), "save": None, "transition": None, "setbacks": ()}
    )
    if advisory:
        status = notice_memory.store(status, advisory)
    event = Event(Reason.PREEMPTION_CANCELLED, "the notice was withdrawn; the workers continue in their pods")
    return StatusDecision(status, (event,), counts)
