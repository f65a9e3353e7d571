"""What the status remembers of each notice that stands: when it was first seen, and the save that answers it.

``status.preemption`` shows the notice that binds, which is the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_contract.api import NoticeStatus, PreemptionStatus, StandingNotice, TrainingJobStatus
from holdfast_contract.api_status import MAX_STANDING_NOTICES
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.notices import LATER_SECONDS, Notice, Urgency, find, key_of

Entries = tuple[StandingNotice, ...]


def remember(view: JobView, standing: Sequence[Notice]) -> Entries:
    """An entry for each standing notice, up to MAX_STANDING_NOTICES: the known one brought up to date, or a new one."""
    known = {key_of(entry): entry for entry in view.status.notices}
    return tuple(_entry(known.get(notice.key), notice) for notice in standing[:MAX_STANDING_NOTICES])


def _entry(known: StandingNotice | None, notice: Notice) -> StandingNotice:
    seen = {"source": notice.source, "urgency": notice.urgency.value, "deadline": notice.deadline}
    if known is not None:
        return (_blank(known) if _is_nearer(known, notice) else known).model_copy(update=seen)
    return StandingNotice.model_validate(
        {"node": notice.node, "pod": notice.pod, "noticed_at": notice.noticed_at, **seen}
    )


def _is_nearer(known: StandingNotice, notice: Notice) -> bool:
    """Whether the deadline has been advanced: the steps since the last save may be lost after all."""
    if known.deadline is None or notice.deadline is None:
        return notice.deadline is not None
    return (known.deadline - notice.deadline).total_seconds() > LATER_SECONDS


def _blank(known: StandingNotice) -> StandingNotice:
    """The entry of a notice that no save has answered."""
    blank = {"save_id": "", "tries": 0, "outcome": None, "reason": "", "saved_step": None, "seconds_to_spare": None}
    return known.model_copy(update=blank)


def store(status: TrainingJobStatus, entries: Entries) -> TrainingJobStatus:
    """The status with these entries, and with the binding one in ``status.preemption``; at least one entry."""
    first = entries[0]
    record = PreemptionStatus(
        notice=NoticeStatus(node=first.node, source=first.source, deadline=first.deadline, noticed_at=first.noticed_at),
        standing=True,
        save_id=first.save_id,
        outcome=first.outcome,
        reason=first.reason,
        saved_step=first.saved_step,
        seconds_to_spare=first.seconds_to_spare,
    )
    return status.model_copy(update={"notices": entries, "preemption": record})


def forget_saves(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status after an attempt's end: a notice that still stands needs a save of its own in the next attempt."""
    return status.model_copy(update={"notices": tuple(_blank(entry) for entry in status.notices)})


def still_standing(view: JobView) -> Entries:
    """The entries whose notices concern members under the view's status."""
    keys = {notice.key for notice in find(view)}
    return tuple(entry for entry in view.status.notices if key_of(entry) in keys)


def urgencies(view: JobView, index: int) -> frozenset[Urgency]:
    """The urgencies of the notices that concern a worker: those seen now, and those remembered of its node or pod."""
    now = {notice.urgency for notice in find(view) if index in notice.workers}
    pod = view.workers[index].pod
    if pod is None:
        return frozenset(now)
    mine = (entry for entry in view.status.notices if entry.node == pod.node and entry.pod in {"", pod.name})
    return frozenset(now | {Urgency(entry.urgency) for entry in mine})
