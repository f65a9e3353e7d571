"""Inspection of the run's folder by worker 0's agent, for the cases in which only storage knows the newest checkpoint.

Agents report each checkpoint when it is committed. If all agents ended while the operator was away, the status is out
of date: newer checkpoints may exist, and the retention policy may have removed the one in the status.
"""

from __future__ import annotations

from holdfast_contract.api import CheckpointPoint, TrainingJobStatus
from holdfast_contract.sync import Inspection
from holdfast_operator.decide import requested_saves
from holdfast_operator.decide.members import SILENT_SECONDS, JobView


def inspection_of(view: JobView) -> Inspection | None:
    """Worker 0's inspection of the run's folder, made under the job's newest attempt number; else None."""
    last = view.last_report(view.workers[0].pod)
    if last is None or last.report.attempt != view.status.attempt:
        return None
    return last.report.inspection


def inspection_is_needed(view: JobView) -> bool:
    """Whether the active attempt has ended and no agent of it can report any more what it committed."""
    active = view.status.active_attempt
    if not active or not view.preparing:
        return False
    survived = any(w.pod is not None and w.pod.created_in_attempt <= active for w, _ in view.reporting())
    last_reports = (h for h in view.observed.last_reports.values() if h.report.attempt == active)
    return not survived and not any(h.age_seconds < SILENT_SECONDS for h in last_reports)


def newest_checkpoint(view: JobView, known: TrainingJobStatus, found: Inspection) -> CheckpointPoint | None:
    """The newest checkpoint of the status and the inspection, without rejected ones.

    A checkpoint of the status that no longer exists stays the newest: the ranks reject it and take the next one.

    Args:
        view: the job.
        known: the status.
        found: the inspection.
    """
    rejected = {r.key for r in known.checkpoint.rejected}
    points = [known.checkpoint.newest] if known.checkpoint.newest is not None else []
    points += [
        requested_saves.to_status_point(ref)
        for ref in found.candidates
        if ref.attempt <= view.status.active_attempt and ref.key not in rejected
    ]
    return max(points, key=lambda p: p.key, default=None)
