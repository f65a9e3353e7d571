"""How far the active attempt has come, whether that is in a committed checkpoint, and whether it still goes on."""

from __future__ import annotations

from holdfast_contract.sync import TrainerPhase
from holdfast_operator.decide import causes
from holdfast_operator.decide.members import JobView


def reached(view: JobView) -> int:
    """The last step that all workers of the active attempt have completed, as far as anyone has said; 0 if none."""
    active = view.status.active_attempt
    said = [
        last.report.progress.last_completed_step
        for _, last in view.reporting()
        if last.report.progress is not None and last.report.attempt == active
    ]
    known = view.status.progress
    remembered = known.step if known is not None and known.attempt == active else 0
    return max(min(said, default=0), remembered)


def is_saved(view: JobView) -> bool:
    """Whether everything that the active attempt has done is surely in a committed checkpoint (or it has done nothing).

    A worker that trains has done more than it last said, so then only the ranks can know: they are asked.
    """
    newest = view.status.checkpoint.newest
    stepping = any(last.report.phase is TrainerPhase.RUNNING for _, last in view.training())
    return not stepping and reached(view) <= (newest.step if newest is not None else 0)


def may_train(view: JobView) -> bool:
    """Whether a trainer of the active attempt may be running: one runs, or its agent has not reported yet."""
    if not view.status.active_attempt or view.preparing:
        return False
    over = {e.worker.index for e in causes.ends(view)}
    for worker in view.workers:
        last = view.last_report(worker.pod)
        silent = last is None and worker.pod is not None and worker.pod.phase == "Running"
        live = last is not None and last.report.phase in {TrainerPhase.STARTING, TrainerPhase.RUNNING}
        if worker.index not in over and (silent or live):
            return True
    return False
