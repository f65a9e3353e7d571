"""Rule: answer preemption notices. All workers save at once; then the affected workers are replaced.

notice ──► save requested ──► outcome known ──► replacement (``replacement``) ──► switch to the next attempt
               │                   │                  │
               └───────────────────┴──────────────────┴── notice withdrawn: replacement cancelled, training continues

Each notice is answered by a save that was requested after it was seen: an older one lacks the steps since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast_contract.api import SaveStatus, StandingNotice
from holdfast_contract.api_status import MAX_MESSAGE
from holdfast_contract.reasons import Metric, Reason, SaveOutcome
from holdfast_operator.decide import causes, notice_memory, notices, replacement, requested_saves, step_progress
from holdfast_operator.decide.actions import Count, Event, StatusDecision
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notice_memory import Entries
from holdfast_operator.decide.notices import Notice
from holdfast_operator.decide.requested_saves import Verdict

MAX_TRIES: Final = 3
"""How many saves are requested for a notice as long as they fail."""
SHORTEST_RETRY_SECONDS: Final = 5.0
"""With less time than this until the deadline, a failed save is not requested again."""

_REASONS: Final = {
    SaveOutcome.COMMITTED: Reason.PREEMPTION_SAVED,
    SaveOutcome.FRESH: Reason.PREEMPTION_ALREADY_FRESH,
    SaveOutcome.TOO_LATE: Reason.PREEMPTION_TOO_LATE,
    SaveOutcome.CANCELLED: Reason.PREEMPTION_CANCELLED,
}


def answer_notices(view: JobView) -> StatusDecision | None:
    """The next step in answering the standing notices, or in cancelling the answer if they were withdrawn."""
    if not view.status.active_attempt or view.preparing:
        return None
    standing = notices.find(view)
    save = view.status.save
    if save is not None and save.purpose == "Switch":
        return replacement.replace_workers(view, standing)  # the trainers stop already
    if any(not e.done for e in causes.ends(view)):
        # ``recover`` decides, and takes the notices into account. A notice that is gone with its pod came true.
        return None if save is None or not view.status.notices else _settle(view, view.status.notices, save)
    if not standing:
        return _withdrawn(view)
    entries = notice_memory.remember(view, standing)
    unanswered = [n for n, entry in zip(standing, entries, strict=False) if _needs_save(view, entry, n)]
    if unanswered:
        return _answer(view, entries, unanswered)
    if entries != view.status.notices:
        return StatusDecision(notice_memory.store(view.status, entries))
    if save is not None:
        return _settle(view, entries, save)
    return replacement.replace_workers(view, standing)


def _needs_save(view: JobView, entry: StandingNotice, notice: Notice) -> bool:
    """Whether no save answers the notice in this attempt, or one that may come too late."""
    save = view.status.save
    if entry.outcome is SaveOutcome.PENDING and save is not None:
        return (save.deadline - notice.save_by(view.now)).total_seconds() > notices.LATER_SECONDS
    return entry.outcome is None or _may_try_again(view, entry, notice)


def _may_try_again(view: JobView, entry: StandingNotice, notice: Notice) -> bool:
    """Whether a save has failed that may succeed yet: the ranks did not agree in time, or storage hesitated."""
    if entry.outcome is not SaveOutcome.FAILED or entry.tries >= MAX_TRIES:
        return False
    return _left(view, notice.save_by(view.now)) >= SHORTEST_RETRY_SECONDS and next(view.training(), None) is not None


def _withdrawn(view: JobView) -> StatusDecision | None:
    record = view.status.preemption
    if record is not None and record.standing:
        return replacement.cancel_replacement(view)
    return StatusDecision(view.status.model_copy(update={"notices": ()})) if view.status.notices else None


def _answer(view: JobView, entries: Entries, unanswered: Sequence[Notice]) -> StatusDecision:
    """Answer notices that have no save in this attempt yet: by the open save, by a new one, or by what is saved."""
    if step_progress.is_saved(view) and next(view.training(), None) is not None:
        return _answer_fresh(view, entries, unanswered)
    status, save = view.status, view.status.save
    nearest = min(n.save_by(view.now) for n in unanswered)
    if save is None or (save.deadline - nearest).total_seconds() > notices.LATER_SECONDS:
        status = requested_saves.request_save(view, "Preemption", nearest)
    save_id = status.save.id if status.save is not None else ""
    keys = {n.key for n in unanswered}
    asked = (e.outcome is SaveOutcome.PENDING or notices.key_of(e) in keys for e in entries)
    answered = tuple(_ask(e, save_id) if ask else e for e, ask in zip(entries, asked, strict=True))
    event = _noticed(view, unanswered, f"all workers save now (save {save_id})")
    return StatusDecision(notice_memory.store(status, answered), (event,))


def _ask(entry: StandingNotice, save_id: str) -> StandingNotice:
    tries = entry.tries + (entry.save_id != save_id)
    return entry.model_copy(update={"save_id": save_id, "tries": tries, "outcome": SaveOutcome.PENDING, "reason": ""})


def _noticed(view: JobView, noticed: Sequence[Notice], consequence: str) -> Event:
    first, others = noticed[0], len(noticed) - 1
    left = "no deadline" if first.deadline is None else f"{_left(view, first.deadline):.0f} s until the deadline"
    more = f", and {others} more" if others else ""
    what = f"workers {list(first.workers)} on node {first.node}: {first.source}, {left}{more}"
    return Event(Reason.PREEMPTION_NOTICED, f"{what}; {consequence}", "Warning")


def _left(view: JobView, deadline: datetime) -> float:
    return (deadline - view.now).total_seconds()


def _answer_fresh(view: JobView, entries: Entries, unanswered: Sequence[Notice]) -> StatusDecision:
    """Notices while every completed step is saved: no save is requested."""
    newest = view.status.checkpoint.newest
    known = Verdict(
        SaveOutcome.FRESH,
        newest.step if newest is not None else None,
        "no step was completed since the newest checkpoint",
    )
    keys = {n.key for n in unanswered}
    answered = tuple(_judged(view, e, known) if notices.key_of(e) in keys else e for e in entries)
    noticed = _noticed(view, unanswered, "every completed step is saved already")
    spare = [e.seconds_to_spare for e in answered if notices.key_of(e) in keys and e.seconds_to_spare is not None]
    counts = (
        Count(Metric.PREEMPTION_SAVES, labels={"outcome": SaveOutcome.FRESH.value}),
        *(Count(Metric.PREEMPTION_SECONDS_TO_SPARE, seconds) for seconds in spare[:1]),
    )
    events = (noticed, Event(Reason.PREEMPTION_ALREADY_FRESH, known.reason))
    return StatusDecision(notice_memory.store(view.status, answered), events, counts)


def _judged(view: JobView, entry: StandingNotice, verdict: Verdict) -> StandingNotice:
    left = _left(view, entry.deadline) if verdict.outcome.is_saved and entry.deadline is not None else None
    if left is not None and left < 0 and entry.urgency == "advisory":
        left = None  # an advisory notice outlives its deadline, so no save is late
    spare = None if left is None else round(left, 3)
    return entry.model_copy(
        update={
            "outcome": verdict.outcome,
            "reason": verdict.reason[:MAX_MESSAGE],
            "saved_step": verdict.step,
            "seconds_to_spare": spare,
        }
    )


def _settle(view: JobView, entries: Entries, save: SaveStatus) -> StatusDecision | None:
    """Record the outcome of the notices' save once it is known. Whatever it is, the workers are replaced afterwards."""
    verdict = requested_saves.judge(view, save)
    if verdict is None:
        return None
    pending = [e.outcome is SaveOutcome.PENDING for e in entries]
    settled = tuple(_judged(view, e, verdict) if open_ else e for e, open_ in zip(entries, pending, strict=True))
    spares = (e.seconds_to_spare for e, open_ in zip(settled, pending, strict=True) if open_)
    spare = min((seconds for seconds in spares if seconds is not None), default=None)
    reason = _REASONS.get(verdict.outcome, Reason.PREEMPTION_SAVE_FAILED)
    if verdict.outcome.is_saved:
        left = f" with {spare:.1f} s to spare" if spare is not None else ""
        message = f"step {verdict.step} was committed{left}"
    else:
        message = f"no save was committed before the deadline ({verdict.outcome.value}): {verdict.reason}"
    counts = [Count(Metric.PREEMPTION_SAVES, labels={"outcome": verdict.outcome.value})]
    if spare is not None:
        counts.append(Count(Metric.PREEMPTION_SECONDS_TO_SPARE, spare))
    status = notice_memory.store(view.status.model_copy(update={"save": None}), settled)
    return StatusDecision(
        status, (Event(reason, message, "Normal" if verdict.outcome.is_saved else "Warning"),), tuple(counts)
    )
