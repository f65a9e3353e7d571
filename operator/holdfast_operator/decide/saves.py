"""Saves that the operator asks for, and how it judges what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast_contract.api import CheckpointPoint, SaveStatus, TrainingJobStatus
from holdfast_contract.api_status import MAX_DIGEST, SavePurpose
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveReport
from holdfast_operator.decide import progress
from holdfast_operator.decide.causes import ends
from holdfast_operator.decide.members import JobView

LATE_ANSWER_SECONDS: Final = 2.0
"""How long after the deadline an answer may still arrive before the save counts as failed."""


@dataclass(frozen=True)
class Verdict:
    """How a save that was asked for ended."""

    outcome: SaveOutcome
    step: int | None = None
    reason: str = ""


def ask(view: JobView, purpose: SavePurpose, deadline: datetime) -> TrainingJobStatus:
    """The status with a new request; one that was open is superseded (a save in flight may still answer this one)."""
    number = view.status.saves_requested + 1
    request = SaveStatus(
        id=f"{view.status.active_attempt}-{number}",
        purpose=purpose,
        requested_at=view.now,
        deadline=deadline,
        from_step=progress.reached(view),
    )
    return view.status.model_copy(update={"save": request, "saves_requested": number})


def judge(view: JobView, request: SaveStatus) -> Verdict | None:
    """What became of a request; None while that is open. A committed checkpoint beats every other word.

    The ranks know best what their checkpoint covers. Only when nothing more can come from them does the newest
    checkpoint that was seen speak for itself.
    """
    if request.stop and view.now < request.deadline and progress.may_train(view):
        return None  # a save that ends the trainers is answered once they have ended
    answers = [s for _, last in view.reporting() for s in last.report.saves if s.id == request.id]
    for good in (SaveOutcome.COMMITTED, SaveOutcome.FRESH):
        for answer in answers:
            if answer.outcome is good and answer.checkpoint is not None:
                return Verdict(good, answer.checkpoint.step)
    bad = _refused(answers) or _silent(view, request)
    return None if bad is None else _covered(view, request) or bad


def _refused(answers: list[SaveReport]) -> Verdict | None:
    for outcome in (SaveOutcome.TOO_LATE, SaveOutcome.FAILED, SaveOutcome.CANCELLED):
        for answer in answers:
            if answer.outcome is outcome:
                return Verdict(outcome, reason=answer.reason)
    return None


def _silent(view: JobView, request: SaveStatus) -> Verdict | None:
    """That no answer will come any more."""
    if (view.now - request.deadline).total_seconds() >= LATE_ANSWER_SECONDS:
        return Verdict(SaveOutcome.FAILED, reason="no worker reported a committed save by the deadline")
    if request.stop and len(ends(view)) == view.spec.replicas:
        return Verdict(SaveOutcome.FAILED, reason="the trainers ended without a committed save")
    return None


def _covered(view: JobView, request: SaveStatus) -> Verdict | None:
    """That the newest checkpoint holds every step that was ever reported."""
    newest = view.status.checkpoint.newest
    if newest is None or newest.attempt != view.status.active_attempt:
        return None
    if newest.step < max(request.from_step, progress.reached(view)):
        return None
    before = newest.committed_at is not None and newest.committed_at < request.requested_at
    return Verdict(SaveOutcome.FRESH if before else SaveOutcome.COMMITTED, newest.step)


def point(ref: CheckpointRef, committed_at: datetime | None = None) -> CheckpointPoint:
    """A checkpoint as status shows it."""
    digest = ref.digest[:MAX_DIGEST]
    return CheckpointPoint(attempt=ref.attempt, step=ref.step, digest=digest, committed_at=committed_at)


def ref(found: CheckpointPoint) -> CheckpointRef:
    """A checkpoint as messages carry it."""
    return CheckpointRef(found.attempt, found.step, found.digest)
