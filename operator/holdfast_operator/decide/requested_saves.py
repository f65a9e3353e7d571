"""Saves that the operator requests, and how it judges their outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast_contract.api import CheckpointPoint, SaveStatus, TrainingJobStatus
from holdfast_contract.api_status import MAX_DIGEST, SavePurpose
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveReport
from holdfast_operator.decide import step_progress
from holdfast_operator.decide.causes import ends
from holdfast_operator.decide.members import JobView

LATE_ANSWER_SECONDS: Final = 2.0
"""How long after the deadline an answer may still arrive before the save counts as failed."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a requested save."""

    outcome: SaveOutcome
    step: int | None = None
    reason: str = ""


def request_save(view: JobView, purpose: SavePurpose, deadline: datetime) -> TrainingJobStatus:
    """The status with a new save request. It replaces an open one, whose running save may still answer the new one.

    Args:
        view: the job.
        purpose: why the save is requested. All but Preemption stop the trainers after the save.
        deadline: when the checkpoint must be committed.
    """
    number = view.status.saves_requested + 1
    request = SaveStatus(
        id=f"{view.status.active_attempt}-{number}",
        purpose=purpose,
        requested_at=view.now,
        deadline=deadline,
        from_step=step_progress.reached(view),
    )
    return view.status.model_copy(update={"save": request, "saves_requested": number})


def judge(view: JobView, request: SaveStatus) -> Verdict | None:
    """The outcome of a request; None while it is open. A committed checkpoint outweighs every other answer.

    The ranks know best which steps their checkpoint contains. Only when no answer can come any more, the newest
    checkpoint in the status decides.
    """
    if request.stop and view.now < request.deadline and step_progress.may_train(view):
        return None  # a save that stops the trainers is judged once they have ended
    answers = [s for _, last in view.reporting() for s in last.report.saves if s.id == request.id]
    for good in (SaveOutcome.COMMITTED, SaveOutcome.FRESH):
        for answer in answers:
            if answer.outcome is good and answer.checkpoint is not None:
                return Verdict(good, answer.checkpoint.step)
    bad = _declined(answers) or _unanswered(view, request)
    return None if bad is None else _covered(view, request) or bad


def describe(verdict: Verdict) -> str:
    """The verdict in words, for conditions and Events."""
    if verdict.outcome.is_saved:
        return f"step {verdict.step} was saved"
    return f"the last steps were not saved ({verdict.outcome.value}): {verdict.reason}"


def _declined(answers: list[SaveReport]) -> Verdict | None:
    for outcome in (SaveOutcome.TOO_LATE, SaveOutcome.FAILED, SaveOutcome.CANCELLED):
        for answer in answers:
            if answer.outcome is outcome:
                return Verdict(outcome, reason=answer.reason)
    return None


def _unanswered(view: JobView, request: SaveStatus) -> Verdict | None:
    """A verdict if no answer can come any more."""
    if (view.now - request.deadline).total_seconds() >= LATE_ANSWER_SECONDS:
        return Verdict(SaveOutcome.FAILED, reason="no worker reported a committed save by the deadline")
    if request.stop and len(ends(view)) == view.spec.replicas:
        return Verdict(SaveOutcome.FAILED, reason="the trainers ended without a committed save")
    return None


def _covered(view: JobView, request: SaveStatus) -> Verdict | None:
    """A verdict if the newest checkpoint contains every step that was reported."""
    newest = view.status.checkpoint.newest
    if newest is None or newest.attempt != view.status.active_attempt:
        return None
    if newest.step < max(request.from_step, step_progress.reached(view)):
        return None
    before = newest.committed_at is not None and newest.committed_at < request.requested_at
    return Verdict(SaveOutcome.FRESH if before else SaveOutcome.COMMITTED, newest.step)


def to_status_point(ref: CheckpointRef, committed_at: datetime | None = None) -> CheckpointPoint:
    """A checkpoint as the status has it."""
    digest = ref.digest[:MAX_DIGEST]
    return CheckpointPoint(attempt=ref.attempt, step=ref.step, digest=digest, committed_at=committed_at)


def to_checkpoint_ref(found: CheckpointPoint) -> CheckpointRef:
    """A checkpoint as reports and directives have it."""
    return CheckpointRef(found.attempt, found.step, found.digest)
