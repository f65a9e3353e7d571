"""How far the active attempt has come, whether that is in a committed checkpoint, and whether it still goes on."""

from __future__ import annotations

from holdfast_contract.sync import TrainerPhase
from holdfast_operator.decide import causes
from holdfast_operator.decide.members import View


def reached(view: View) -> int:
    """The last step that all workers of the active attempt have completed, as far as anyone has said; 0 if none."""
    active = view.status.active_attempt
    said = [
        heard.report.progress.last_completed_step
        for _, heard in view.spoken()
        if heard.report.progress is not None and heard.report.attempt == active
    ]
    known = view.status.progress
    remembered = known.step if known is not None and known.attempt == active else 0
    return max(min(said, default=0), remembered)


def is_saved(view: View) -> bool:
    """Whether everything that the active attempt has done is surely in a committed checkpoint (or it has done nothing).

    A worker that trains has done more than it last said, so then only the ranks can know: they are asked.
    """
    newest = view.status.checkpoint.newest
    stepping = any(heard.report.phase is TrainerPhase.RUNNING for _, heard in view.training())
    return not stepping and reached(view) <= (newest.step if newest is not None else 0)


def may_train(view: View) -> bool:
    """Whether a trainer of the active attempt may be running: one runs, or its agent was not heard of yet."""
    if not view.status.active_attempt or view.preparing:
        return False
    over = {e.worker.index for e in causes.ends(view)}
    for worker in view.workers:
        heard = view.heard(worker.pod)
        silent = heard is None and worker.pod is not None and worker.pod.phase == "Running"
        live = heard is not None and heard.report.phase in {TrainerPhase.STARTING, TrainerPhase.RUNNING}
        if worker.index not in over and (silent or live):
            return True
    return False
