"""The background thread that watches for rounds of the agreement and takes part in them for this rank."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.distributed.agreement import (
    CLOSED,
    Decision,
    Gate,
    RankState,
    Round,
    RoundAnswer,
    round_key,
    seconds_until,
)
from holdfast.distributed.coordination import Coordination
from holdfast.errors import CoordinationLost, PeerLost
from holdfast_contract import codec
from holdfast_contract.sync import SaveRequest

WATCH_SECONDS: Final = 30.0
"""Length of one blocking read for the next round, which is repeated. A new round wakes it at once."""
CLOSE_SECONDS: Final = 5.0
MAX_ROUNDS: Final = 3
"""A request is given up after this many abandoned rounds."""

log = logging.getLogger("holdfast")


@dataclass
class _Proposal:
    """A request of this rank that no round has settled yet."""

    request: SaveRequest
    deadline: float | None  # of the monotonic clock


class Agreement:
    """This rank's part in all agreements of an attempt. ``ask`` from any thread; the main thread uses ``gate``.

    Args:
        coordination: the key-value store of all ranks.
        facts: what this rank knows now; called on the watching thread.
        agreed: takes the request and the decision, on the watching thread, before the main thread is released.
    """

    def __init__(
        self,
        coordination: Coordination,
        *,
        facts: Callable[[], RankState],
        agreed: Callable[[SaveRequest, Decision], None],
    ) -> None:
        self.gate = Gate()
        self._coordination, self._facts, self._agreed = coordination, facts, agreed
        self._lock = threading.Lock()
        self._number = 1
        self._proposals: dict[tuple[str, bool], _Proposal] = {}
        self._settled: set[tuple[str, bool]] = set()
        self._abandoned: dict[tuple[str, bool], int] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="holdfast-agreement", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def ask(self, request: SaveRequest) -> None:
        """Ask all ranks for a save. Repeating a request changes nothing. Returns at once."""
        with self._lock:
            if _key(request) in self._proposals or _key(request) in self._settled:
                return
            deadline = None if request.seconds_left is None else time.monotonic() + request.seconds_left
            self._proposals[_key(request)] = _Proposal(request, deadline)
            number = self._number
        self._propose(number)

    def withdraw(self, request_id: str) -> bool:
        """Withdraw a request; True if no round had settled it."""
        with self._lock:
            found = [key for key in self._proposals if key[0] == request_id]
            for key in found:
                del self._proposals[key]
            return bool(found)

    def close(self) -> None:
        """This rank leaves, and no agreement is possible afterwards. Waits for the thread, at most CLOSE_SECONDS."""
        self._closing = True
        try:
            self._coordination.create(f"{round_key(self._number)}/ask", CLOSED)
        except PeerLost:
            log.debug("the coordination service was gone before the agreement was closed")
        self._thread.join(CLOSE_SECONDS)

    def _propose(self, number: int) -> None:
        """Make the oldest proposal the subject of a round, unless another rank was first."""
        with self._lock:
            proposal = next(iter(self._proposals.values()), None)
        if proposal is None:
            return
        left = None if proposal.deadline is None else seconds_until(proposal.deadline)
        request = replace(proposal.request, seconds_left=left)
        try:
            self._coordination.create(f"{round_key(number)}/ask", codec.encode(request).decode())
        except CoordinationLost as error:
            self.gate.break_down(error)

    def _watch(self) -> None:
        try:
            while self._next_round():
                pass
        except PeerLost as error:
            if not self._closing:
                log.warning("no agreement is possible any more: %s", error)
                self.gate.break_down(error)
        except Exception as error:
            log.exception("the agreement failed")
            self.gate.break_down(CoordinationLost("the agreement", repr(error)))

    def _next_round(self) -> bool:
        number = self._number
        if self._closing:
            self._coordination.create(f"{round_key(number)}/ask", CLOSED)
        self._propose(number)
        try:
            text = self._coordination.get(f"{round_key(number)}/ask", WATCH_SECONDS)
        except TimeoutError:
            return not self._closing
        if text == CLOSED:
            return False
        request = codec.decode(SaveRequest, text)
        decision = self._take_part(number, request)
        self._settle(request, decision)
        if decision.answer is not RoundAnswer.ABANDONED and self._coordination.process_index == 0 and number > 1:
            # Every rank has published in this round, so all have left the previous one.
            self._coordination.delete(round_key(number - 1))
        return True

    def _take_part(self, number: int, request: SaveRequest) -> Decision:
        round_ = Round(self._coordination, number, request, self.gate)
        while (decision := round_.advance(time.monotonic(), self._facts)) is None:
            wait_seconds = seconds_until(round_.deadline)
            awaited = round_.awaited()
            if awaited is not None and wait_seconds > 0:
                with contextlib.suppress(TimeoutError):
                    self._coordination.get(awaited, wait_seconds)
        return decision

    def _settle(self, request: SaveRequest, decision: Decision) -> None:
        """Record the outcome, hand it on, then release the main thread, so that it cannot run ahead of the decision."""
        with self._lock:
            self._number += 1
            if decision.answer is RoundAnswer.ABANDONED and self._may_retry(request):
                decision = replace(decision, reason=f"{decision.reason}; trying again")
                retry = True
            else:
                self._settled.add(_key(request))
                self._proposals.pop(_key(request), None)
                retry = False
        log.debug("round %d, %s: %s", self._number - 1, request, decision)
        if not retry:
            self._agreed(request, decision)
            if request.stop and decision.answer is RoundAnswer.ABANDONED:
                self.gate.stop_at_once()
        self.gate.release(decision)

    def _may_retry(self, request: SaveRequest) -> bool:
        count = self._abandoned.get(_key(request), 0) + 1
        self._abandoned[_key(request)] = count
        return request.seconds_left is not None and request.seconds_left > 0 and count < MAX_ROUNDS


def _key(request: SaveRequest) -> tuple[str, bool]:
    """Two requests with the same key are one: asking to stop as well is asking for more."""
    return request.id, request.stop
