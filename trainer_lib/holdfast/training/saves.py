"""Saves of one rank: one at a time, what they cost, and which requests each of them answers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from holdfast.distributed.agreement import RankState
from holdfast.errors import HoldfastError, PeerLost, Superseded
from holdfast.policies.save_rules import DecisionContext
from holdfast.training.goodput import GoodputAccountant
from holdfast.training.progress import Steps
from holdfast.training.save_requests import SaveBegan, SaveEnded, SaveRequestQueue
from holdfast.training.status import Status
from holdfast_contract.reasons import Bucket
from holdfast_contract.sync import FailureHistory

if TYPE_CHECKING:
    from holdfast.store import CheckpointExtras, SaveHandle, Store

RECENT_SAVES: Final = 100
"""Window of the 99th percentile: with fewer it is the slowest."""

MARGIN_SECONDS: Final = 200.0
"""So much longer than the store lets a save take; only a defect gets here."""

FAILED_IN_A_ROW: Final = 3
"""After so many saves that failed one after the other, training ends, whatever ``on_save_error`` says."""

log = logging.getLogger("holdfast")


class Saves:
    """Begins saves on the main thread and follows them.

    Args:
        store: writes the checkpoints.
        accountant: what the loop waits for a save is booked there.
        steps: the completed steps and their durations.
        status: shows what is committed and what failed.
        requests: takes the begin and the end of each save.
        history: failures before this attempt.
    """

    def __init__(
        self,
        store: Store,
        *,
        accountant: GoodputAccountant,
        steps: Steps,
        status: Status,
        requests: SaveRequestQueue,
        history: FailureHistory,
    ) -> None:
        self._store, self._accountant, self._steps, self._status = store, accountant, steps, status
        self._requests, self._history = requests, history
        self._lock = threading.Lock()
        self._handle: SaveHandle | None = None
        self._began = time.monotonic()
        self._stalls: deque[float] = deque(maxlen=RECENT_SAVES)
        self._writes: deque[float] = deque(maxlen=RECENT_SAVES)
        self._failed_in_a_row = 0
        self._hopeless: SaveHandle | None = None
        self.last_step = -1

    def begin(self, step: int, state: Any, request: CheckpointExtras) -> SaveHandle:
        """Snapshot now and save in the background. Waits for the save before, which every rank does at the same step.

        What the store raises at once (a leaf that cannot be stored) is a mistake of the program and is raised.
        """
        with self._accountant.within(Bucket.SAVE_STALL):
            self.wait()
            began = time.monotonic()
            handle = self._store.save(step, state, request)
        stalled = time.monotonic() - began
        with self._lock:
            self._handle, self._began, self.last_step = handle, began, step
            self._stalls.append(stalled)
        self._requests.put(SaveBegan(step))
        handle.add_done_callback(lambda done: self._finished(done, began))
        return handle

    def wait(self) -> None:
        """Return when no save is in flight, whatever became of it; the store ends each within its own limit."""
        handle = self._handle
        limit = self._store.save_seconds + MARGIN_SECONDS
        if handle is not None and not handle.wait(limit):
            raise PeerLost(f"the save of step {handle.step}", limit_seconds=limit)

    def require_hope(self) -> None:
        """Raise the error of a save after which no later one can be expected to succeed.

        Raises:
            Superseded: this attempt may not write any more. SaveError: FAILED_IN_A_ROW saves have failed.
        """
        raise_failure(self._hopeless)

    def start_clock(self) -> None:
        """The loop begins: intervals count from now."""
        self._began = time.monotonic()

    @property
    def in_flight(self) -> SaveHandle | None:
        """The save that is being written."""
        handle = self._handle
        return None if handle is None or handle.done() else handle

    @property
    def last(self) -> SaveHandle | None:
        """The latest save, whatever became of it."""
        return self._handle

    def decision_context(self, step: int) -> DecisionContext:
        """What a policy may look at after ``step``."""
        with self._lock:
            stall = sum(self._stalls) / len(self._stalls) if self._stalls else None
            since = time.monotonic() - self._began
            return DecisionContext(step, since, stall, self._write_seconds(), self._steps.recent(), self._history_now())

    def facts(self) -> RankState:
        """This rank's part in an agreement, but for the step entered."""
        completed, newest = self._steps.completed, self._status.newest
        flying = self.in_flight
        with self._lock:
            write = self._write_seconds() or 0.0
            remaining = max(0.0, write - (time.monotonic() - self._began)) if flying else 0.0
        step_seconds = self._steps.step_seconds or 0.0
        return RankState(
            completed=completed,
            newest=-1 if newest is None else newest.step,
            in_flight=flying.step if flying else None,
            in_flight_seconds=remaining,
            # The steps that were dispatched already and the one that is saved, then the save before, then this one.
            forecast_seconds=(self._steps.pending + 1) * step_seconds + remaining + write,
        )

    def _history_now(self) -> FailureHistory:
        running = self._history.running_seconds + self._accountant.age_seconds
        return FailureHistory(self._history.failures, running)

    def _write_seconds(self) -> float | None:
        """99th percentile of recent saves, from their call to their commit."""
        if not self._writes:
            return None
        return sorted(self._writes)[max(0, -(-99 * len(self._writes) // 100) - 1)]

    def _finished(self, handle: SaveHandle, began: float) -> None:
        error = handle.exception()
        if error is None:
            self._failed_in_a_row = 0
            with self._lock:
                self._writes.append(time.monotonic() - began)
            self._status.committed(handle.result(0))
            log.info("step %d is committed", handle.step)
        else:
            self._failed_in_a_row += 1
            if isinstance(error, Superseded) or self._failed_in_a_row >= FAILED_IN_A_ROW:
                self._hopeless = handle
            going_on = "continues" if self._hopeless is None else "ends at the next step"
            log.error("the save of step %d failed; training %s: %s", handle.step, going_on, error)
            self._status.storage_failed(str(error))
        self._requests.put(SaveEnded(handle.step, handle.committed, str(error or "")))


def raise_failure(handle: SaveHandle | None) -> None:
    """Raise what made a finished save fail, if it did."""
    error = None if handle is None else handle.exception()
    if isinstance(error, HoldfastError):
        raise error
    if error is not None:
        raise RuntimeError(str(error)) from error
