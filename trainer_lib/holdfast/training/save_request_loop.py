"""The one thread that owns the table of save requests: events in, effects out, in the order in which things happened."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Final

from holdfast.distributed.agreement_thread import Agreement
from holdfast.errors import RequestFailed
from holdfast.training.save_requests import (
    AFTER_THE_END,
    POLICY_PREFIX,
    PROGRAM_PREFIX,
    Agreed,
    Answer,
    Effect,
    Event,
    Marker,
    Propose,
    Requested,
    RequestTable,
    SaveRequestQueue,
    TakeBack,
    TakenBack,
    TrainingEnded,
    Withdrawn,
    react,
)
from holdfast.training.schedule import Schedule
from holdfast.training.status import Status
from holdfast_contract.local import AgentCommand
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveReport, SaveRequest

END_SECONDS: Final = 5.0
"""How long the end of training waits until every open request has its answer."""

log = logging.getLogger("holdfast")


class SaveRequestLoop:
    """Applies ``react`` to every event of the queue and carries out what follows.

    Args:
        events: the queue that all parts of the session put events into.
        agreement: proposes requests to all ranks, and takes them back.
        status: shows the agent how its requests stand.
        schedule: learns that a request of the save policy led to no save.
        process_index: this rank; part of the ids of the program's requests.
    """

    def __init__(
        self,
        events: SaveRequestQueue,
        *,
        agreement: Agreement,
        status: Status,
        schedule: Schedule,
        process_index: int,
    ) -> None:
        self._events, self._agreement, self._status, self._schedule = events, agreement, status, schedule
        self._process_index = process_index
        self._table = RequestTable()
        self._lock = threading.Lock()
        self._futures: dict[str, Future[CheckpointRef]] = {}
        self._programs = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-requests", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def stopped_saved(self) -> bool:
        """Whether the request that ended training was answered with a checkpoint."""
        return self._table.stopped_saved

    def command(self, command: AgentCommand) -> None:
        """The agent asks for a save, or for none any more."""
        self._events.put(Withdrawn() if command.save is None else Requested(command.save))

    def request(self, request: SaveRequest) -> None:
        """Ask all ranks for a save."""
        self._events.put(Requested(request))

    def request_of_program(self, seconds_left: float) -> Future[CheckpointRef]:
        """Ask all ranks for a save on behalf of the program.

        Returns:
            A future of the committed checkpoint, or of RequestFailed; it fails at once after the end of training.
        """
        future: Future[CheckpointRef] = Future()
        with self._lock:
            self._programs += 1
            request_id = f"{PROGRAM_PREFIX}{self._process_index}-{self._programs}"
            if not self._closed:
                self._futures[request_id] = future
                self._events.put(Requested(SaveRequest(request_id, seconds_left)))
                return future
        _resolve(future, SaveReport(request_id, SaveOutcome.FAILED, reason=AFTER_THE_END))
        return future

    def end(self, checkpoint: CheckpointRef | None, reason: str) -> None:
        """Training has ended: ``checkpoint`` answers what is open; None: nothing does, for this reason.

        Returns once every request has its answer, after END_SECONDS at the latest.
        """
        self._events.put(TrainingEnded(checkpoint, reason))
        self._flush(last=False)

    def close(self) -> None:
        """End the thread. What the program asked for and asks for from now on fails. Call it again without effect."""
        with self._lock:
            self._closed = True
            unanswered, self._futures = self._futures, {}
        if self._thread.is_alive():
            self._flush(last=True)
        for request_id, future in unanswered.items():
            _resolve(future, SaveReport(request_id, SaveOutcome.FAILED, reason=AFTER_THE_END))

    def _flush(self, *, last: bool) -> None:
        marker = Marker(threading.Event(), last)
        self._events.put(marker)
        if not marker.reached.wait(END_SECONDS):
            log.error("save requests are not answered within %g s: the coordination service is silent", END_SECONDS)

    def _run(self) -> None:
        while True:
            event = self._events.get()
            if isinstance(event, Marker):
                event.reached.set()
                if event.last:
                    return
                continue
            try:
                self._apply(event)
            except Exception:
                log.exception("a save request failed")

    def _apply(self, event: Event) -> None:
        before = self._table
        self._table, effects = react(before, event)
        if isinstance(event, Requested | Agreed):
            _log(event, is_new=event.request.id not in before.open and event.request.id not in before.answered)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Propose(request):
                self._agreement.ask(request)
            case TakeBack(request_id):
                if self._agreement.withdraw(request_id):
                    self._apply(TakenBack(request_id))
            case Answer(report):
                self._answer(report)

    def _answer(self, report: SaveReport) -> None:
        if report.id.startswith(POLICY_PREFIX):
            if report.outcome is not SaveOutcome.PENDING:
                self._schedule.settled(report.id)
        elif not report.id.startswith(PROGRAM_PREFIX):
            self._status.saved(report)
        elif report.outcome is not SaveOutcome.PENDING:
            with self._lock:
                future = self._futures.pop(report.id, None)
            if future is not None:
                _resolve(future, report)


def _log(event: Requested | Agreed, *, is_new: bool) -> None:
    request = event.request
    level = logging.DEBUG if request.id.startswith(POLICY_PREFIX) else logging.INFO
    if is_new:
        within = "" if request.seconds_left is None else f" within {request.seconds_left:.1f} s"
        log.log(level, "request %s: a save%s is asked for", request.id, within)
    if isinstance(event, Agreed):
        decision = event.decision
        log.log(level, "request %s: %s %s %s", request.id, decision.answer.value, decision.step, decision.reason)


def _resolve(future: Future[CheckpointRef], report: SaveReport) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if report.checkpoint is not None:
        future.set_result(report.checkpoint)
    else:
        future.set_exception(RequestFailed(report.outcome.value, report.reason))
