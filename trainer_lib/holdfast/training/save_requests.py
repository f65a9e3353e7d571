"""Requests for a save as one table: what is open, which save answers it, and what follows from each event. Pure.

Requests come from the agent (which speaks for the operator), from SIGTERM, from the program and from the save policy. All
of them take the same way:

    Requested ──► Propose to all ranks ──► Agreed ──► SAVE at a step ──► SaveEnded(step) ──► Answer
                        │                     ├────► IN_FLIGHT ─────────► SaveEnded(step) ──► Answer
                        │                     └────► FRESH, TOO_LATE, ABANDONED ────────────► Answer
    Withdrawn ──► TakeBack ──► TakenBack ──► Answer: cancelled
    TrainingEnded ──► Answer for everything that is open, and for whatever comes later

``react`` is the only function that changes the table; ``save_request_loop`` runs it on one thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.distributed.agreement import Decision, RoundAnswer
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import MAX_LIST, SIGTERM_SAVE_ID, SaveReport, SaveRequest

POLICY_PREFIX: Final = "policy/"
"""Requests of the save policy; no other process waits for their outcome."""
PROGRAM_PREFIX: Final = "program/"
"""Requests of the training program, which holds a future for the outcome; the agent does not see them."""
AFTER_THE_END: Final = "training has ended"


# ---- events: what happens to requests


@dataclass(frozen=True)
class Requested:
    """A save is asked for in this process."""

    request: SaveRequest


@dataclass(frozen=True)
class Withdrawn:
    """The agent withdraws its requests."""


@dataclass(frozen=True)
class TakenBack:
    """The ranks had not agreed yet on a request that was withdrawn."""

    id: str


@dataclass(frozen=True)
class Agreed:
    """All ranks decided on a request, of this rank or another. ``newest``: the newest committed checkpoint then."""

    request: SaveRequest
    decision: Decision
    newest: CheckpointRef | None


@dataclass(frozen=True)
class SaveBegan:
    """A save of this step is being written."""

    step: int


@dataclass(frozen=True)
class SaveEnded:
    """The save of this step ended: with a checkpoint, or None and the reason."""

    step: int
    checkpoint: CheckpointRef | None
    reason: str = ""


@dataclass(frozen=True)
class TrainingEnded:
    """No further save begins. ``checkpoint`` holds everything up to the end; None and the reason if none does."""

    checkpoint: CheckpointRef | None
    reason: str = ""


Event = Requested | Withdrawn | TakenBack | Agreed | SaveBegan | SaveEnded | TrainingEnded


# ---- effects: what the loop has to do


@dataclass(frozen=True)
class Propose:
    """Ask all ranks for this save. Asking again for the same changes nothing."""

    request: SaveRequest


@dataclass(frozen=True)
class TakeBack:
    """Withdraw this request, unless the ranks have agreed on it."""

    id: str


@dataclass(frozen=True)
class Answer:
    """Report the state of a request to the party that asked."""

    report: SaveReport


Effect = Propose | TakeBack | Answer


# ---- the table


@dataclass(frozen=True)
class OpenRequest:
    """A request without an outcome. ``step``: the save of this step, or a later one, answers it; None: not agreed."""

    request: SaveRequest
    step: int | None = None


@dataclass(frozen=True)
class RequestTable:
    """All requests of this rank. ``answered`` holds the agent's last MAX_LIST requests that have an outcome."""

    open: Mapping[str, OpenRequest] = field(default_factory=dict)
    answered: Mapping[str, SaveRequest] = field(default_factory=dict)
    saving: int | None = None
    last_save: SaveEnded | None = None
    end: TrainingEnded | None = None
    stop_outcome: SaveOutcome | None = None

    @property
    def stopped_saved(self) -> bool:
        """Whether the request that ended training was answered with a checkpoint."""
        return self.stop_outcome is not None and self.stop_outcome.is_saved


Reaction = tuple[RequestTable, tuple[Effect, ...]]


def react(table: RequestTable, event: Event) -> Reaction:
    """The table after an event, and what to do."""
    match event:
        case Requested(request):
            return _requested(table, request)
        case Withdrawn():
            return table, tuple(TakeBack(request_id) for request_id in table.open if _is_agents(request_id))
        case TakenBack(request_id):
            return _answer(table, SaveReport(request_id, SaveOutcome.CANCELLED, reason="withdrawn before it was begun"))
        case Agreed(request, decision, newest):
            return _agreed(table, request, decision, newest)
        case SaveBegan(step):
            return replace(table, saving=step), ()
        case SaveEnded():
            return _answer_all(replace(table, saving=None, last_save=event), event.checkpoint, event.reason, event.step)
        case TrainingEnded():
            return _answer_all(replace(table, end=event), event.checkpoint, event.reason, None)


def _requested(table: RequestTable, request: SaveRequest) -> Reaction:
    if table.end is not None:
        return table, (Answer(SaveReport(request.id, SaveOutcome.FAILED, reason=AFTER_THE_END)),)
    known = table.answered.get(request.id)
    if known is not None and (known.stop or not request.stop):
        return table, ()  # repeated, for the agent connected anew: it has its answer
    new = known is None and request.id not in table.open
    table = _opened(table, OpenRequest(request))
    pending = (Answer(SaveReport(request.id, SaveOutcome.PENDING)),) if new else ()
    return table, (*pending, Propose(request))


def _agreed(table: RequestTable, request: SaveRequest, decision: Decision, newest: CheckpointRef | None) -> Reaction:
    step = decision.step if decision.answer in {RoundAnswer.SAVE, RoundAnswer.IN_FLIGHT} else None
    table = _opened(table, OpenRequest(request, step))
    forecast = decision.forecast_seconds
    if decision.answer is RoundAnswer.FRESH:
        return _answer(table, SaveReport(request.id, SaveOutcome.FRESH, checkpoint=newest))
    if decision.answer is RoundAnswer.TOO_LATE:
        too_late = SaveReport(request.id, SaveOutcome.TOO_LATE, reason=decision.reason, forecast_seconds=forecast)
        return _answer(table, too_late)
    if decision.answer is RoundAnswer.ABANDONED:
        return _answer(table, SaveReport(request.id, SaveOutcome.FAILED, reason=decision.reason))
    last = table.last_save
    if last is not None and last.step >= decision.step:
        return _answer(table, _outcome(request.id, last.checkpoint, last.reason))
    if table.end is not None:
        return _answer(table, _outcome(request.id, table.end.checkpoint, table.end.reason))
    if decision.answer is RoundAnswer.IN_FLIGHT and table.saving != decision.step:
        found = newest if newest is not None and newest.step == decision.step else None
        return _answer(table, _outcome(request.id, found, f"the save of step {decision.step} is not known"))
    return table, (Answer(SaveReport(request.id, SaveOutcome.PENDING, forecast_seconds=forecast)),)


def _answer_all(table: RequestTable, checkpoint: CheckpointRef | None, reason: str, step: int | None) -> Reaction:
    """Answer what a save of ``step`` answers; None: everything."""
    effects: list[Effect] = []
    for request_id, entry in tuple(table.open.items()):
        if step is None or (entry.step is not None and entry.step <= step):
            table, done = _answer(table, _outcome(request_id, checkpoint, reason))
            effects += done
    return table, tuple(effects)


def _outcome(request_id: str, checkpoint: CheckpointRef | None, reason: str) -> SaveReport:
    if checkpoint is not None:
        return SaveReport(request_id, SaveOutcome.COMMITTED, checkpoint=checkpoint)
    return SaveReport(request_id, SaveOutcome.FAILED, reason=reason)


def _opened(table: RequestTable, entry: OpenRequest) -> RequestTable:
    """``entry`` is open. An earlier agreement on the same request holds on if this one brings none."""
    before = table.open.get(entry.request.id)
    if before is not None and entry.step is None:
        entry = replace(entry, step=before.step)
    return replace(table, open={**table.open, entry.request.id: entry})


def _answer(table: RequestTable, report: SaveReport) -> Reaction:
    """The request has its outcome."""
    still_open = dict(table.open)
    entry = still_open.pop(report.id, None)
    if entry is None:
        return table, ()
    # Only the agent's are asked for again, when it connects anew.
    answered = {**table.answered, report.id: entry.request} if _is_agents(report.id) else dict(table.answered)
    while len(answered) > MAX_LIST:
        del answered[next(iter(answered))]
    stop_outcome = report.outcome if entry.request.stop else table.stop_outcome
    return replace(table, open=still_open, answered=answered, stop_outcome=stop_outcome), (Answer(report),)


def _is_agents(request_id: str) -> bool:
    return request_id != SIGTERM_SAVE_ID and not request_id.startswith((PROGRAM_PREFIX, POLICY_PREFIX))


# ---- the queue


@dataclass(frozen=True)
class Marker:
    """In the queue behind everything that came before it. ``last``: nothing comes after it."""

    reached: threading.Event
    last: bool = False


class SaveRequestQueue:
    """Where all runtime of a session put what happens to save requests. Thread-safe; ``put`` never blocks."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Event | Marker] = queue.SimpleQueue()

    def put(self, event: Event | Marker) -> None:
        """Hand over an event."""
        self._items.put(event)

    def get(self) -> Event | Marker:
        """The next event, waiting for it. For the loop alone."""
        return self._items.get()
