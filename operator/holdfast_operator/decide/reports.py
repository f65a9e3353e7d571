"""Applies the workers' reports to the status: checkpoints, rejections, progress. Decides nothing."""

from __future__ import annotations

from typing import Final

from holdfast_contract.api import CheckpointPoint, ProgressStatus, RejectedPoint, TrainingJobStatus, WorkersStatus
from holdfast_contract.api_status import MAX_MESSAGE, MAX_REJECTED, MAX_SHOWN_METRICS
from holdfast_contract.manifest import CheckpointKey, CheckpointRef
from holdfast_contract.reasons import Condition, Metric, Reason
from holdfast_contract.sync import Progress, TrainerPhase
from holdfast_operator.decide import conditions, requested_saves
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.members import SILENT_SECONDS, JobView

SHORTEST_STEP_SECONDS: Final = 1e-6
LONGEST_STEP_SECONDS: Final = 1e6
"""Shorter and longer step times are ignored."""


def apply_reports(view: JobView) -> StatusDecision:
    """The stored status, updated from what is observed, with the Events and counts that follow."""
    status = view.status.model_copy(
        update={
            "observed_generation": view.job.generation,
            "start_time": view.status.start_time or view.now,
            "workers": _workers(view),
            "progress": _progress(view) or view.status.progress,
        }
    )
    decision = _checkpoints(view, status)
    return StatusDecision(decision.status, (*decision.events, *_storage_trouble(view)), decision.counts)


def _storage_trouble(view: JobView) -> tuple[Event, ...]:
    """An Event for a storage error that a trainer reports, once: the condition shows which error is known."""
    shown = conditions.get(view.status, Condition.CHECKPOINT_VALID)
    for worker, last in view.reporting():
        trouble = last.report.storage_error[: conditions.MAX_MESSAGE]
        if trouble:
            known = shown is not None and shown.reason == Reason.SAVE_FAILED and shown.message == trouble
            message = f"worker {worker.index} reports a storage error: {trouble}"
            return () if known else (Event(Reason.SAVE_FAILED, message, "Warning"),)
    return ()


def _workers(view: JobView) -> WorkersStatus:
    stopped = conditions.finished(view.status) or conditions.holds(view.status, Condition.SUSPENDED)
    unreported = any(
        w.pod is not None and w.pod.phase == "Running" and view.last_report(w.pod) is None for w in view.workers
    )
    beginning = view.observed.term_seconds < SILENT_SECONDS
    if beginning and unreported and view.status.active_attempt and view.status.transition is None and not stopped:
        return view.status.workers  # this process has just started: agents that have not reported yet have not failed
    running = [w for w, h in view.training() if h.report.phase is TrainerPhase.RUNNING]
    stepping = sum(1 for w in running if view.has_reported_lately(w.pod))
    ready = sum(1 for w in view.workers if view.ready(w.pod))
    return WorkersStatus(desired=0 if stopped else view.spec.replicas, ready=ready, training=stepping)


def _progress(view: JobView) -> ProgressStatus | None:
    """Progress of the slowest worker that trains; None if none has reported any."""
    reported: list[Progress] = [h.report.progress for _, h in view.training() if h.report.progress is not None]
    if not reported:
        return None
    slowest = min(reported, key=lambda p: p.last_completed_step)
    seconds = [p.step_seconds for p in reported if p.step_seconds is not None and _is_plausible(p.step_seconds)]
    step_seconds = max(seconds) if seconds else None
    return ProgressStatus(
        attempt=view.status.active_attempt,
        step=slowest.last_completed_step,
        total_steps=slowest.total_steps,
        step_seconds=step_seconds,
        steps_per_second=round(1 / step_seconds, 3) if step_seconds else None,
        metrics=dict(list(reported[0].metrics.items())[:MAX_SHOWN_METRICS]),
        observed_at=view.now,
    )


def _is_plausible(step_seconds: float) -> bool:
    return SHORTEST_STEP_SECONDS <= step_seconds <= LONGEST_STEP_SECONDS


def _checkpoints(view: JobView, status: TrainingJobStatus) -> StatusDecision:
    known = status.checkpoint
    events: list[Event] = []
    fresh = _new_rejections(view)
    rejected = (*fresh, *known.rejected)[:MAX_REJECTED]
    events += (
        Event(
            Reason.CHECKPOINT_REJECTED,
            f"the checkpoint of attempt {r.attempt}, step {r.step} was rejected: {r.reason}",
            "Warning",
        )
        for r in fresh
    )
    restored = _restored(view) or known.restored
    if restored is not None and restored != known.restored:
        origin = f"the checkpoint of attempt {restored.attempt}, step {restored.step}"
        events.append(Event(Reason.CHECKPOINT_RESTORED, f"attempt {status.active_attempt} restored {origin}"))
    newest = _newest(view, restored, {r.key for r in rejected})
    if (
        newest is not None and known.newest is None
    ):  # later ones are only in status and metrics: a long job makes thousands
        first = f"attempt {newest.attempt}, step {newest.step}"
        events.append(Event(Reason.CHECKPOINT_COMMITTED, f"the first checkpoint is committed: {first}"))
    checkpoint = known.model_copy(
        update={"run": view.job.run, "newest": newest, "restored": restored, "rejected": rejected}
    )
    counts = (Count(Metric.CHECKPOINTS_REJECTED, float(len(fresh))),) if fresh else ()
    return StatusDecision(status.model_copy(update={"checkpoint": checkpoint}), tuple(events), counts)


def _new_rejections(view: JobView) -> tuple[RejectedPoint, ...]:
    known = {r.key for r in view.status.checkpoint.rejected}
    fresh: dict[CheckpointKey, RejectedPoint] = {}
    for _, last in view.reporting():
        for r in last.report.rejected:
            if r.key not in known:
                reason = r.reason[:MAX_MESSAGE]
                fresh.setdefault(r.key, RejectedPoint(attempt=r.attempt, step=r.step, reason=reason))
    return tuple(fresh[k] for k in sorted(fresh, reverse=True))[:MAX_REJECTED]


def _restored(view: JobView) -> CheckpointPoint | None:
    for _, last in view.reporting():
        ref, active = last.report.restored, view.status.active_attempt
        if last.report.attempt == active and ref is not None and ref.attempt <= active:
            pinned = view.status.checkpoint.pinned
            return (
                pinned
                if pinned is not None and requested_saves.to_checkpoint_ref(pinned) == ref
                else requested_saves.to_status_point(ref)
            )
    return None


def _newest(view: JobView, restored: CheckpointPoint | None, rejected: set[CheckpointKey]) -> CheckpointPoint | None:
    """The newest checkpoint that is committed and not rejected, by (attempt, step): a later attempt supersedes others."""
    known = [p for p in (view.status.checkpoint.newest, restored) if p is not None]
    reported: list[CheckpointRef] = [
        h.report.newest
        for _, h in view.reporting()
        if h.report.newest is not None and h.report.newest.attempt <= view.status.active_attempt
    ]
    fresh = [
        requested_saves.to_status_point(ref, view.now)
        for ref in reported
        if ref not in [requested_saves.to_checkpoint_ref(p) for p in known]
    ]
    valid = [p for p in (*known, *fresh) if p.key not in rejected]
    return max(valid, key=lambda p: p.key, default=None)
