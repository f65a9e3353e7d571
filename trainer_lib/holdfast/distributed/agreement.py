"""Agreement of all ranks on the step of a requested save.

Ranks see a request at different times and their clocks differ, but a save is collective: all ranks must save the same step.
So a request becomes a numbered *round* in the key-value store that all ranks share. On each rank a background thread sees
the round, holds the step counter, and publishes the last step that the rank has entered. Process 0 writes the decision, the
highest of these steps plus one, under a key that can be created once. No rank has passed that step, because all are held. A
rank that waits too long tries to create the decision "abandoned", and before it releases its main thread it obeys the
decision that exists. No two ranks can therefore obey different decisions. The main threads take no part, so they may be
inside a collective meanwhile.

    round/<n>/ask          the request, created by the first rank that has one; "closed" once a rank has left
    round/<n>/facts/<r>    what rank r knows, above all the last step it entered
    round/<n>/decision     created once, obeyed by all ranks

This module is the part without threads; ``agreement_thread`` drives it.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.distributed.coordination import Coordination
from holdfast.errors import PeerLost
from holdfast_contract import codec
from holdfast_contract.sync import SaveRequest

HOLD_SECONDS: Final = 2.0
HOLD_SHARE: Final = 0.1
"""A hold lasts at most HOLD_SECONDS, and at most this share of the seconds that are left."""
SHORTEST_HOLD_SECONDS: Final = 0.1
"""A hold is never shorter than an agreement takes: the ranks must agree even on "too late"."""
GATE_SECONDS: Final = 120.0
"""How long a held main thread waits for its background thread, whose own limits are shorter."""
CLOSED: Final = "closed"


class RoundAnswer(enum.StrEnum):
    """The outcome of a round."""

    SAVE = "save"  # save `step`
    IN_FLIGHT = "in-flight"  # the save of `step` that is being written answers
    FRESH = "fresh"  # the committed checkpoint of `step` answers: no completed step is missing in it
    TOO_LATE = "too-late"  # no save can be committed in time; none is begun
    ABANDONED = "abandoned"  # not every rank answered in time


@dataclass(frozen=True)
class RankState:
    """What one rank knows. Steps count from 1; 0 is the initial state, -1 means none. Durations in seconds."""

    entered: int = 0
    completed: int = 0
    newest: int = -1  # step of the newest checkpoint that is committed, or was restored
    in_flight: int | None = None  # step of a save that is being written
    in_flight_seconds: float = 0.0  # forecast until that is committed
    forecast_seconds: float = 0.0  # forecast until a save agreed on now is committed


@dataclass(frozen=True)
class Decision:
    """What all ranks do. ``stop_after``: no rank enters a later step."""

    answer: RoundAnswer
    step: int = -1
    stop_after: int | None = None
    forecast_seconds: float = 0.0
    reason: str = ""


def hold_seconds(request: SaveRequest) -> float:
    """How long a round on this request may hold the training loop."""
    if request.seconds_left is None:
        return HOLD_SECONDS
    return max(SHORTEST_HOLD_SECONDS, min(HOLD_SECONDS, HOLD_SHARE * request.seconds_left))


def decide(request: SaveRequest, facts: Sequence[RankState], seconds_left: float | None) -> Decision:
    """The decision that follows from what every rank has published.

    Args:
        request: the request.
        facts: one state per rank.
        seconds_left: until the request's deadline; None without one.
    """
    entered = max(f.entered for f in facts)
    forecast = max(f.forecast_seconds for f in facts)
    newest = min(f.newest for f in facts)
    covers = entered if request.stop else max(f.completed for f in facts)
    if newest >= covers and newest >= 0:
        return Decision(RoundAnswer.FRESH, newest, entered if request.stop else None, forecast)
    flying = _common_in_flight(facts)
    if not request.stop and flying is not None and flying >= covers:
        return Decision(RoundAnswer.IN_FLIGHT, flying, None, forecast)  # no completed step would be missing in it
    if seconds_left is None or forecast <= seconds_left:
        return Decision(RoundAnswer.SAVE, entered + 1, entered + 1 if request.stop else None, forecast)
    stop_after = entered if request.stop else None
    if flying is not None and max(f.in_flight_seconds for f in facts) <= seconds_left:
        return Decision(RoundAnswer.IN_FLIGHT, flying, stop_after, forecast)
    reason = f"a save would be committed in {forecast:.1f} s, but only {max(0.0, seconds_left):.1f} s are left"
    return Decision(RoundAnswer.TOO_LATE, -1, stop_after, forecast, reason)


def _common_in_flight(facts: Sequence[RankState]) -> int | None:
    """The step that every rank is writing or has committed, if at least one rank is still writing it."""
    flying = {f.in_flight for f in facts if f.in_flight is not None}
    if len(flying) != 1:
        return None
    (step,) = flying
    return step if all(step in {f.in_flight, f.newest} for f in facts) else None


class Gate:
    """The gate that the main thread passes before each step; it holds the decisions to obey. Thread-safe."""

    def __init__(self, entered: int = 0) -> None:
        self._changed = threading.Condition()
        self._entered = entered
        self._held = False
        self._due: set[int] = set()
        self._stop_after: int | None = None
        self._broken: PeerLost | None = None

    @property
    def entered(self) -> int:
        """The last step entered."""
        return self._entered

    @property
    def stop_after(self) -> int | None:
        """The agreed last step; None unless the ranks agreed to stop."""
        return self._stop_after

    def try_enter(self, step: int) -> bool:
        """Enter ``step`` and return True, unless the gate is held or ``step`` is past the agreed end."""
        with self._changed:
            if self._held or self._is_past_end(step):
                return False
            self._entered = step
            return True

    def enter(self, step: int, timeout_seconds: float = GATE_SECONDS) -> bool:
        """Wait until not held, then enter ``step``; False if training ends before it.

        Raises:
            PeerLost: the coordination service is gone, or the gate was held longer than the limit.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._held, timeout_seconds):
                raise PeerLost("the ranks' decision on a save", limit_seconds=timeout_seconds)
            if self._broken is not None:
                raise self._broken
            return self.try_enter(step)

    def start_at(self, entered: int) -> None:
        """Count the restored step as entered. Waits while held, because a published step must not change."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held, GATE_SECONDS)
            self._entered = entered

    def hold(self) -> int:
        """Stop the main thread from entering steps. Returns the last step entered."""
        with self._changed:
            self._held = True
            return self._entered

    def release(self, decision: Decision) -> None:
        """Release the main thread, which then obeys ``decision``."""
        with self._changed:
            if decision.answer is RoundAnswer.SAVE:
                self._due.add(decision.step)
            if decision.stop_after is not None and (self._stop_after is None or decision.stop_after < self._stop_after):
                self._stop_after = decision.stop_after
            self._held = False
            self._changed.notify_all()

    def break_down(self, error: PeerLost) -> None:
        """No agreement is possible any more: the main thread raises ``error`` instead of entering a step."""
        with self._changed:
            self._broken, self._held = error, False
            self._changed.notify_all()

    def stop_at_once(self) -> None:
        """Stop this rank without an agreement: it enters no further step."""
        with self._changed:
            if not self._is_past_end(self._entered + 1):
                self._stop_after = self._entered

    def take_due(self, step: int) -> bool:
        """Whether the ranks agreed on a save after ``step`` or before it; True once for each agreed save."""
        with self._changed:
            due = {agreed for agreed in self._due if agreed <= step}
            self._due -= due
            return bool(due)

    def _is_past_end(self, step: int) -> bool:
        return self._stop_after is not None and step > self._stop_after


class Round:
    """One round on one rank; each ``advance`` does one operation on the key-value store."""

    def __init__(self, coordination: Coordination, number: int, request: SaveRequest, gate: Gate) -> None:
        self._coordination, self._gate = coordination, gate
        self._key = round_key(number)
        self._facts = f"{self._key}/facts"
        self._rank = coordination.process_index
        self._deadline: float | None = None
        self._published = False
        self.request = request
        self.began: float | None = None

    @property
    def deadline(self) -> float:
        """When this rank stops waiting, on the clock given to ``advance``."""
        return self._deadline if self._deadline is not None else float("inf")

    def awaited(self) -> str | None:
        """The key to wait for before the next ``advance``; None if there is nothing to wait for."""
        if self._rank != 0:
            return f"{self._key}/decision"
        there = self._coordination.directory(self._facts)
        ranks = range(self._coordination.process_count)
        return next((key for r in ranks if (key := f"{self._facts}/{r}") not in there), None)

    def advance(self, now: float, facts: Callable[[], RankState]) -> Decision | None:
        """Do the next operation; return the decision once it exists.

        The gate is held from the first call on, and the caller releases it with the decision.

        Args:
            now: a reading of time.monotonic().
            facts: returns what this rank knows now.

        Raises:
            CoordinationLost: the coordination service is gone.
        """
        if not self._published:
            self.began, self._deadline = now, now + hold_seconds(self.request)
            entered = self._gate.hold()
            mine = replace(facts(), entered=entered)
            self._coordination.create(f"{self._facts}/{self._rank}", codec.encode(mine).decode())
            self._published = True
            return None
        existing = self._coordination.try_get(f"{self._key}/decision")
        if existing is not None:
            return codec.decode(Decision, existing)
        proposal = self._proposal(now)
        if proposal is not None:
            self._coordination.create(f"{self._key}/decision", codec.encode(proposal).decode())
        return None

    def _proposal(self, now: float) -> Decision | None:
        if self._rank == 0:
            published = self._coordination.directory(self._facts)
            if len(published) == self._coordination.process_count:
                left = self.request.seconds_left
                left = None if left is None else left - (now - (self.began or now))
                return decide(self.request, [codec.decode(RankState, v) for v in published.values()], left)
        if now < self.deadline:
            return None
        published = self._coordination.directory(self._facts)
        silent = [r for r in range(self._coordination.process_count) if f"{self._facts}/{r}" not in published]
        reason = f"no agreement within {hold_seconds(self.request):.2f} s; no answer from process(es) {silent}"
        return Decision(RoundAnswer.ABANDONED, reason=reason)


def round_key(number: int) -> str:
    """The folder of a round in the key-value store."""
    return f"round/{number}"


def seconds_until(deadline: float) -> float:
    """Seconds from now until a reading of time.monotonic(), at least 0."""
    return max(0.0, deadline - time.monotonic())
