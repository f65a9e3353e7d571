"""The last completed step of the active attempt, whether it is saved, and whether a trainer may still run."""

from __future__ import annotations

from holdfast_contract.sync import TrainerPhase
from holdfast_operator.decide import causes
from holdfast_operator.decide.members import JobView


def reached(view: JobView) -> int:
    """The last step that all workers of the active attempt have reported as completed; 0 if there is none."""
    active = view.status.active_attempt
    reported = [
        last.report.progress.last_completed_step
        for _, last in view.reporting()
        if last.report.progress is not None and last.report.attempt == active
    ]
    known = view.status.progress
    stored = known.step if known is not None and known.attempt == active else 0
    return max(min(reported, default=0), stored)


def has_stepped(view: JobView) -> bool:
    """Whether the active attempt has completed a step beyond the checkpoint that it started from."""
    checkpoint = view.status.checkpoint
    origin = checkpoint.restored or checkpoint.pinned
    return reached(view) > (origin.step if origin is not None else 0)


def is_saved(view: JobView) -> bool:
    """Whether a committed checkpoint contains every completed step of the active attempt for certain.

    A worker that trains is ahead of its last report, so while one trains the answer is False: only the ranks know.
    """
    newest = view.status.checkpoint.newest
    stepping = any(last.report.phase is TrainerPhase.RUNNING for _, last in view.training())
    return not stepping and reached(view) <= (newest.step if newest is not None else 0)


def may_train(view: JobView) -> bool:
    """Whether a trainer of the active attempt may run: one is reported, or a pod's agent has not reported yet."""
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
