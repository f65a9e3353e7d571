"""What each worker's agent has to do now. A pod without a directive is not a member and must exit."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_contract import keys
from holdfast_contract.identity import PodUid
from holdfast_contract.reasons import Condition
from holdfast_contract.sync import Action, Directive, SaveRequest
from holdfast_operator.decide import conditions, failure_history, requested_saves, run_inspection
from holdfast_operator.decide.facts import PodFact
from holdfast_operator.decide.members import JobView


def directives(view: JobView) -> Mapping[PodUid, Directive] | None:
    """One directive per member and incoming pod, by pod UID. None: the published directives stay."""
    if conditions.holds(view.status, Condition.SUSPENDED):
        return {}
    members = [(w.index, w.pod) for w in view.workers if w.pod is not None]
    if conditions.finished(view.status):
        over = Directive(Action.EXIT, view.status.active_attempt, why=_how_it_ended(view))
        return {pod.uid: over for _, pod in members}
    if view.preparing or not view.status.active_attempt:
        return {pod.uid: _prepare(view, index) for index, pod in members}
    running = _run(view)
    if running is None:
        return None
    waiting = {
        w.incoming.uid: Directive(Action.WAIT, view.status.attempt) for w in view.workers if w.incoming is not None
    }
    return {pod.uid: running for _, pod in members} | waiting


def _how_it_ended(view: JobView) -> str:
    if conditions.holds(view.status, Condition.SUCCEEDED):
        return "the job has succeeded"
    return f"the job has failed ({conditions.get_reason(view.status, Condition.FAILED)})"


def _prepare(view: JobView, index: int) -> Directive:
    """Between attempts all workers wait; worker 0 inspects the run's folder where only storage knows its content."""
    inspect = not view.preparing or run_inspection.inspection_is_needed(view)
    return Directive(Action.INSPECT if inspect and index == 0 else Action.WAIT, view.status.attempt)


def _run(view: JobView) -> Directive | None:
    """The directive of all workers of the active attempt."""
    status = view.status
    leader = view.workers[0].pod
    if leader is None or not leader.ip:
        return None  # ``recover`` is about to replace it; until then the published directives stay
    save = None
    if status.save is not None:
        left = max(0.0, (status.save.deadline - view.now).total_seconds())
        save = SaveRequest(status.save.id, left, status.save.stop)
    pinned = status.checkpoint.pinned
    return Directive(
        Action.RUN,
        status.active_attempt,
        coordinator=coordinator(leader, status.active_attempt),
        pin=requested_saves.to_checkpoint_ref(pinned) if pinned is not None else None,
        take_over=status.take_over_attempt == status.active_attempt,
        save=save,
        history=failure_history.history(status),
    )


def coordinator(pod: PodFact, attempt: int) -> str:
    """host:port of the attempt's JAX coordinator: worker 0's IP address, since a name may still lead to an older pod."""
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{keys.coordinator_port(attempt)}"
