"""Requests for a save that come from outside: from the agent, which speaks for the operator, from the program, or as
SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final

from holdfast.distributed.agreement import Answer, Ask, Decision
from holdfast.distributed.agreement_thread import Agreement
from holdfast.errors import RequestFailed
from holdfast.training.saves import Saves
from holdfast.training.schedule import POLICY_PREFIX
from holdfast.training.status import Status
from holdfast_contract.local import AgentCommand
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SIGTERM_SAVE_ID, SaveReport

SIGTERM_SECONDS: Final = 25.0
"""Seconds left after a SIGTERM that came without a word: Kubernetes' default grace less the time to end."""

PROGRAM_PREFIX: Final = "program/"
"""Requests of the training program, which has a future for the outcome; the agent is told nothing of them."""

log = logging.getLogger("holdfast")


class RequestDesk:
    """Every request from its arrival to its outcome. Thread-safe once connected."""

    def __init__(self, status: Status, process_index: int) -> None:
        self._status, self._process_index = status, process_index
        self._lock = threading.Lock()
        self._open: dict[str, Ask] = {}
        self._futures: dict[str, Future[CheckpointRef]] = {}
        self._programs = 0
        self._stop_outcome: SaveOutcome | None = None

    def connect(self, agreement: Agreement, saves: Saves) -> None:
        """With whom requests are agreed on, and what answers them; before anything else is called."""
        self._agreement, self._saves = agreement, saves

    @property
    def stopped_saved(self) -> bool:
        """Whether the request that ended training was answered with a checkpoint."""
        return self._stop_outcome is not None and self._stop_outcome.is_saved

    def command(self, command: AgentCommand) -> None:
        """The agent's word: a request, or none any more."""
        if command.save is None:
            for request_id in tuple(self._open):
                theirs = request_id != SIGTERM_SAVE_ID and not request_id.startswith(PROGRAM_PREFIX)
                if theirs and self._agreement.withdraw(request_id):
                    self._close(request_id, SaveOutcome.CANCELLED, reason="withdrawn before it was begun")
            return
        self.request(Ask(command.save.id, command.save.seconds_left, command.save.stop))

    def request(self, ask: Ask) -> None:
        """Ask all ranks for a save."""
        self._noted(ask)
        self._agreement.ask(ask)

    def request_of_program(self, seconds_left: float) -> Future[CheckpointRef]:
        """Ask all ranks for a save; what becomes of it."""
        future: Future[CheckpointRef] = Future()
        with self._lock:
            self._programs += 1
            request_id = f"{PROGRAM_PREFIX}{self._process_index}-{self._programs}"
            self._futures[request_id] = future
        self.request(Ask(request_id, seconds_left))
        return future

    def decided(self, ask: Ask, decision: Decision) -> None:
        """All ranks decided. Called before the main thread is let go."""
        log.info("request %s: %s %s %s", ask.id, decision.answer.value, decision.step, decision.reason)
        self._noted(ask)
        forecast = decision.forecast_seconds
        if decision.answer is Answer.SAVE:
            self._tell(SaveReport(ask.id, SaveOutcome.PENDING, forecast_seconds=forecast))
        elif decision.answer is Answer.FRESH:
            self._close(ask.id, SaveOutcome.FRESH, checkpoint=self._status.newest)
        elif decision.answer is Answer.TOO_LATE:
            self._close(ask.id, SaveOutcome.TOO_LATE, reason=decision.reason, forecast_seconds=forecast)
        elif decision.answer is Answer.IN_FLIGHT:
            self._saves.follow(decision.step, ask)
        else:
            self._close(ask.id, SaveOutcome.FAILED, reason=decision.reason)
            if ask.stop:
                self._agreement.gate.stop_at_once()

    def answered(self, asks: Sequence[Ask], ref: CheckpointRef | None, reason: str) -> None:
        """A save that answers these has ended."""
        outcome = SaveOutcome.FAILED if ref is None else SaveOutcome.COMMITTED
        for ask in asks:
            self._close(ask.id, outcome, checkpoint=ref, reason=reason)

    def close(self, ref: CheckpointRef | None, reason: str) -> None:
        """Training has ended: whatever is still open is answered by the final checkpoint, or will never be."""
        with self._lock:
            asks = tuple(self._open.values())
        self.answered(asks, ref, reason)

    def _noted(self, ask: Ask) -> None:
        with self._lock:
            before = self._open.get(ask.id)
            self._open[ask.id] = ask
        if before is None and self._status.save_report(ask.id) is None:
            log.info("request %s: a save within %.1f s is asked for", ask.id, ask.seconds_left)
            self._tell(SaveReport(ask.id, SaveOutcome.PENDING))

    def _close(self, request_id: str, outcome: SaveOutcome, **details: Any) -> None:
        with self._lock:
            ask = self._open.pop(request_id, None)
            if ask is not None and ask.stop:
                self._stop_outcome = outcome
            future = self._futures.pop(request_id, None)
        report = SaveReport(request_id, outcome, **details)
        if future is not None:
            _answer(future, report)
        self._tell(report)

    def _tell(self, report: SaveReport) -> None:
        if not report.id.startswith((POLICY_PREFIX, PROGRAM_PREFIX)):
            self._status.saved(report)


def _answer(future: Future[CheckpointRef], report: SaveReport) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if report.checkpoint is not None:
        future.set_result(report.checkpoint)
    else:
        future.set_exception(RequestFailed(report.outcome.value, report.reason))


class TerminationSignal:
    """Calls ``received`` once, on a thread of its own, as soon as SIGTERM arrives.

    A Python signal handler would wait until the main thread comes out of the step that it waits for; the interpreter's
    wake-up file is written at once. Install it after ``jax.distributed.initialize``, which sets a handler of its own.
    """

    def __init__(self, received: Callable[[], None]) -> None:
        self._received = received
        self._reader, self._writer = socket.socketpair()
        self._previous: Any = None
        self._previous_fd = -1
        self._installed = False

    def install(self) -> None:
        """Take the signal; nothing happens outside the main thread, where Python cannot."""
        if threading.current_thread() is not threading.main_thread():
            log.info("SIGTERM is not handled: the session was not opened on the main thread")
            return
        self._writer.setblocking(False)
        threading.Thread(target=self._listen, name="holdfast-sigterm", daemon=True).start()
        self._previous = signal.signal(signal.SIGTERM, _noted_by_the_wakeup_file)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._installed = True

    def restore(self) -> None:
        """Give the signal back."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._previous_fd)
            signal.signal(signal.SIGTERM, self._previous if self._previous is not None else signal.SIG_DFL)
            self._installed = False
        with contextlib.suppress(OSError):
            self._writer.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while numbers := self._reader.recv(64):
            if signal.SIGTERM in numbers:
                log.warning("SIGTERM: saving, then stopping (process %d)", os.getpid())
                self._received()


def _noted_by_the_wakeup_file(number: int, frame: FrameType | None) -> None:
    """Python writes the wake-up file only for signals that have a handler."""
