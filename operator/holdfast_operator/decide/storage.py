"""What storage holds, when nobody can tell any more who has trained there: worker 0's agent looks into the run's folder.

Agents tell the newest checkpoint as it is committed. If all of them ended while the operator was away, what it knows is
out of date: newer checkpoints may be there, and the one that it knows may have been cleared away for them.
"""

from __future__ import annotations

from holdfast_contract.api import CheckpointPoint, TrainingJobStatus
from holdfast_contract.sync import Inspection
from holdfast_operator.decide import saves
from holdfast_operator.decide.members import SILENT_SECONDS, JobView


def inspection_of(view: JobView) -> Inspection | None:
    """What worker 0 has found in the run's folder since it was asked under the job's present number."""
    last = view.last_report(view.workers[0].pod)
    if last is None or last.report.attempt != view.status.attempt:
        return None
    return last.report.inspection


def must_be_looked_into(view: JobView) -> bool:
    """Whether the active attempt is over and no agent that saw it can tell what it has committed."""
    active = view.status.active_attempt
    if not active or not view.preparing:
        return False
    survived = any(w.pod is not None and w.pod.created_in_attempt <= active for w, _ in view.reporting())
    last_words = (h for h in view.observed.last_reports.values() if h.report.attempt == active)
    return not survived and not any(h.age_seconds < SILENT_SECONDS for h in last_words)


def newest(view: JobView, known: TrainingJobStatus, found: Inspection) -> CheckpointPoint | None:
    """The newest checkpoint by what is known and what was found, without those that were refused before.

    A known one that is there no more stays the newest: then the ranks say so, and take the next one.
    """
    refused = {r.key for r in known.checkpoint.rejected}
    points = [known.checkpoint.newest] if known.checkpoint.newest is not None else []
    points += [
        saves.point(ref)
        for ref in found.candidates
        if ref.attempt <= view.status.active_attempt and ref.key not in refused
    ]
    return max(points, key=lambda p: p.key, default=None)
