"""One agreement on the step of every save that is not a function of the step alone.

Ranks learn of a request at different times and their clocks differ, but a save is collective: all ranks must save the
same step. So a request becomes a numbered *round* in the key-value store that all ranks share. In each rank a background
thread sees it, holds the step counter, and publishes the last step that the rank has entered. Process 0 writes the
decision, the highest of these plus one, as a key that can be created once: every rank is still before that step, because
it was held. A rank that waits too long tries to create the decision "abandoned" and obeys whatever is there before it
lets go, so no two ranks ever obey different decisions. The main threads take no part: they may sit in a collective
meanwhile.

    round/<n>/ask          the request, created by whoever was first; "closed" once a rank has left for good
    round/<n>/facts/<r>    what rank r knows, the last step entered above all
    round/<n>/decision     created once, obeyed by all

Here is the part without threads; ``agreement_thread`` drives it.
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

HOLD_SECONDS: Final = 2.0
HOLD_SHARE: Final = 0.1
"""A hold lasts at most HOLD_SECONDS, and at most this share of the seconds that are left."""
SHORTEST_HOLD_SECONDS: Final = 0.1
"""But never less than an agreement takes: even to say "too late" the ranks must agree."""
GATE_SECONDS: Final = 120.0
"""How long a held main thread waits for its own background thread, which has shorter limits of its own."""
CLOSED: Final = "closed"


class Answer(enum.StrEnum):
    """What a round came to."""

    SAVE = "save"  # save `step`
    IN_FLIGHT = "in-flight"  # the save of `step` that is being written answers
    FRESH = "fresh"  # the committed checkpoint of `step` answers: no completed step is missing in it
    TOO_LATE = "too-late"  # no save can be committed in time; none is begun
    ABANDONED = "abandoned"  # not every rank answered in time


@dataclass(frozen=True)
class Ask:
    """A request for a save. ``seconds_left`` None: no hurry. ``stop``: training ends once it is answered."""

    id: str
    seconds_left: float | None = None
    stop: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """Two asks with the same key are one: asking to stop as well is asking for more."""
        return self.id, self.stop

    @property
    def hold_seconds(self) -> float:
        """How long a round may hold the loop."""
        if self.seconds_left is None:
            return HOLD_SECONDS
        return max(SHORTEST_HOLD_SECONDS, min(HOLD_SECONDS, HOLD_SHARE * self.seconds_left))


@dataclass(frozen=True)
class RankState:
    """What one rank knows. Steps count from 1; 0 is the initial state, -1 nothing. Durations in seconds."""

    entered: int = 0
    completed: int = 0
    newest: int = -1  # step of the newest checkpoint that is committed, or was restored
    in_flight: int | None = None  # step of a save that is being written
    in_flight_seconds: float = 0.0  # forecast until that is committed
    forecast_seconds: float = 0.0  # forecast until a save agreed on now is committed


@dataclass(frozen=True)
class Decision:
    """What all ranks do. ``stop_after``: no rank enters a later step."""

    answer: Answer
    step: int = -1
    stop_after: int | None = None
    forecast_seconds: float = 0.0
    reason: str = ""


def decide(ask: Ask, facts: Sequence[RankState], seconds_left: float | None) -> Decision:
    """The decision from what every rank said and the seconds that are left now."""
    entered = max(f.entered for f in facts)
    forecast = max(f.forecast_seconds for f in facts)
    newest = min(f.newest for f in facts)
    covers = entered if ask.stop else max(f.completed for f in facts)
    if newest >= covers and newest >= 0:
        return Decision(Answer.FRESH, newest, entered if ask.stop else None, forecast)
    if seconds_left is None or forecast <= seconds_left:
        return Decision(Answer.SAVE, entered + 1, entered + 1 if ask.stop else None, forecast)
    stop_after = entered if ask.stop else None
    flying = _common_in_flight(facts)
    if flying is not None and max(f.in_flight_seconds for f in facts) <= seconds_left:
        return Decision(Answer.IN_FLIGHT, flying, stop_after, forecast)
    reason = f"a save would be committed in {forecast:.1f} s, {max(0.0, seconds_left):.1f} s are left"
    return Decision(Answer.TOO_LATE, -1, stop_after, forecast, reason)


def _common_in_flight(facts: Sequence[RankState]) -> int | None:
    """The step that every rank is writing or has committed, if at least one is still writing it."""
    flying = {f.in_flight for f in facts if f.in_flight is not None}
    if len(flying) != 1:
        return None
    (step,) = flying
    return step if all(step in {f.in_flight, f.newest} for f in facts) else None


class Gate:
    """What the main thread passes on its way into each step, and what it has to obey. Thread-safe."""

    def __init__(self, entered: int = 0) -> None:
        self._changed = threading.Condition()
        self._entered = entered
        self._held = False
        self._decided: list[tuple[Ask, Decision]] = []
        self._stop_after: int | None = None
        self._broken: PeerLost | None = None

    @property
    def entered(self) -> int:
        """The last step entered."""
        return self._entered

    @property
    def stop_after(self) -> int | None:
        """The agreed last step, if an end was agreed on."""
        return self._stop_after

    def try_enter(self, step: int) -> bool:
        """Enter ``step`` unless held or past an agreed end; False and nothing changed then."""
        with self._changed:
            if self._held or self._is_past_end(step):
                return False
            self._entered = step
            return True

    def enter(self, step: int, timeout_seconds: float = GATE_SECONDS) -> bool:
        """Wait until not held, then enter ``step``; False if training ends before it.

        Raises:
            PeerLost: the coordination service is gone, or held beyond the limit.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._held, timeout_seconds):
                raise PeerLost("the ranks' decision on a save", limit_seconds=timeout_seconds)
            if self._broken is not None:
                raise self._broken
            return self.try_enter(step)

    def start_at(self, entered: int) -> None:
        """The restored step counts as entered. Waits while held, since a published step must not change."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held, GATE_SECONDS)
            self._entered = entered

    def hold(self) -> int:
        """From now on no step is entered. Returns the last one that was."""
        with self._changed:
            self._held = True
            return self._entered

    def release(self, ask: Ask, decision: Decision) -> None:
        """Let the main thread go on, with this to obey."""
        with self._changed:
            if decision.answer is Answer.SAVE:
                self._decided.append((ask, decision))
            if decision.stop_after is not None and (self._stop_after is None or decision.stop_after < self._stop_after):
                self._stop_after = decision.stop_after
            self._held = False
            self._changed.notify_all()

    def break_down(self, error: PeerLost) -> None:
        """No agreement is possible any more: the next step is not entered."""
        with self._changed:
            self._broken, self._held = error, False
            self._changed.notify_all()

    def stop_at_once(self) -> None:
        """Without an agreement: this rank enters no further step."""
        with self._changed:
            if not self._is_past_end(self._entered + 1):
                self._stop_after = self._entered

    def take(self, step: int) -> tuple[Ask, ...]:
        """The requests that a save after ``step`` answers; each is handed out once."""
        with self._changed:
            due = tuple(ask for ask, decision in self._decided if decision.step <= step)
            self._decided = [(a, d) for a, d in self._decided if d.step > step]
            return due

    def _is_past_end(self, step: int) -> bool:
        return self._stop_after is not None and step > self._stop_after


class Round:
    """One round in one rank, a store operation at a time."""

    def __init__(self, coordination: Coordination, number: int, ask: Ask, gate: Gate) -> None:
        self._coordination, self._gate = coordination, gate
        self._key = round_key(number)
        self._facts = f"{self._key}/facts"
        self._rank = coordination.process_index
        self._deadline: float | None = None
        self._published = False
        self.ask = ask
        self.began: float | None = None

    @property
    def deadline(self) -> float:
        """When this rank stops waiting, on the clock given to ``advance``."""
        return self._deadline if self._deadline is not None else float("inf")

    def awaited(self) -> str | None:
        """A key whose appearance makes the next ``advance`` worth while; None if it is so already."""
        if self._rank != 0:
            return f"{self._key}/decision"
        there = self._coordination.directory(self._facts)
        ranks = range(self._coordination.process_count)
        return next((key for r in ranks if (key := f"{self._facts}/{r}") not in there), None)

    def advance(self, now: float, facts: Callable[[], RankState]) -> Decision | None:
        """Do what can be done now; the decision once it is there. The gate is held from the first call on; the caller
        releases it with the decision. Raises CoordinationLost.
        """
        if not self._published:
            self.began, self._deadline = now, now + self.ask.hold_seconds
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
            said = self._coordination.directory(self._facts)
            if len(said) == self._coordination.process_count:
                left = self.ask.seconds_left
                left = None if left is None else left - (now - (self.began or now))
                return decide(self.ask, [codec.decode(RankState, v) for v in said.values()], left)
        if now < self.deadline:
            return None
        said = self._coordination.directory(self._facts)
        silent = [r for r in range(self._coordination.process_count) if f"{self._facts}/{r}" not in said]
        reason = f"no agreement within {self.ask.hold_seconds:.2f} s; no word from process(es) {silent}"
        return Decision(Answer.ABANDONED, reason=reason)


def round_key(number: int) -> str:
    """The folder of a round in the key-value store."""
    return f"round/{number}"


def seconds_until(deadline: float) -> float:
    """Seconds from now to an instant of the monotonic clock, not below 0."""
    return max(0.0, deadline - time.monotonic())
