"""The agreement's rules, driven one store operation at a time in every order that the machine can think of."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.distributed.agreement import Decision, Gate, RankState, Round, RoundAnswer, decide
from holdfast.distributed.coordination import Coordination, LocalCoordination
from holdfast_contract.sync import SaveRequest


class RankView(LocalCoordination):
    """One rank's view of a store that several simulated ranks share."""

    def __init__(self, shared: LocalCoordination, index: int, count: int) -> None:
        self.__dict__.update(shared.__dict__)  # the same dictionary and lock
        self.process_index = index
        self.process_count = count


@dataclass
class SimulatedRank:
    """A main thread that steps and a watching thread that takes part in one round after the other."""

    coordination: Coordination
    last_step: int
    gate: Gate = field(default_factory=Gate)
    rounds: int = 0
    current: Round | None = None
    saved: list[int] = field(default_factory=list)
    obeyed: list[Decision] = field(default_factory=list)
    in_step: bool = False

    def step(self) -> None:
        """The main thread: enter the next step, or commit the one that it is in."""
        if self.in_step:
            if self.gate.take_due(self.gate.entered):
                self.saved.append(self.gate.entered)
            self.in_step = False
        elif self.gate.entered < self.last_step:
            self.in_step = self.gate.try_enter(self.gate.entered + 1)

    def watch(self, now: float) -> None:
        """The watching thread: one store operation."""
        if self.current is None:
            text = self.coordination.try_get(f"round/{self.rounds + 1}/ask")
            if text is None:
                return
            self.rounds += 1
            request = SaveRequest(f"request-{self.rounds}", float(text))
            self.current = Round(self.coordination, self.rounds, request, self.gate)
        decision = self.current.advance(now, lambda: RankState(completed=max(0, self.gate.entered - 1)))
        if decision is not None:
            self.obeyed.append(decision)
            self.gate.release(decision)
            self.current = None


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 4),
    asks=st.integers(1, 3),
    moves=st.lists(
        st.tuples(st.sampled_from(["step", "watch", "watch", "tick"]), st.integers(0, 3), st.floats(0.0, 0.5)),
        max_size=150,
    ),
)
def test_ranks_save_the_same_steps_in_every_interleaving(
    count: int, asks: int, moves: list[tuple[str, int, float]]
) -> None:
    shared = LocalCoordination()
    ranks = [SimulatedRank(RankView(shared, index, count), last_step=40) for index in range(count)]
    for number in range(asks):
        shared.create(f"round/{number + 1}/ask", "20.0")
    now = 0.0
    for kind, index, seconds in moves:
        rank = ranks[index % count]
        if kind == "step":
            rank.step()
        elif kind == "watch":
            rank.watch(now)
        else:
            now += seconds
    for _ in range(60 * (asks + 1)):  # let everything that can still happen happen
        now += 0.1
        for rank in ranks:
            rank.watch(now)
            rank.step()
    assert all(len(rank.obeyed) == asks for rank in ranks)
    assert all(rank.obeyed == ranks[0].obeyed for rank in ranks)
    decided = sorted({d.step for d in ranks[0].obeyed if d.answer is RoundAnswer.SAVE and d.step <= 40})
    for rank in ranks:
        for _ in range(100):
            rank.step()
        assert sorted(rank.saved) == decided
        assert rank.saved == ranks[0].saved


@given(
    entered=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
    forecast=st.floats(0, 100),
    left=st.none() | st.floats(0, 100),
    stop=st.booleans(),
)
def test_a_decision_is_never_behind_a_rank(entered: list[int], forecast: float, left: float | None, stop: bool) -> None:
    facts = [RankState(entered=e, completed=max(0, e - 1), forecast_seconds=forecast) for e in entered]
    decision = decide(SaveRequest("a", left, stop), facts, left)
    if decision.answer is RoundAnswer.SAVE:
        assert decision.step == max(entered) + 1
        assert left is None or forecast <= left
    else:
        assert decision.answer is RoundAnswer.TOO_LATE
        assert left is not None
        assert forecast > left
    assert (decision.stop_after is not None) == stop
    assert decision.stop_after is None or decision.stop_after >= max(entered)


def test_a_committed_checkpoint_of_the_last_completed_step_is_fresh() -> None:
    facts = [RankState(entered=8, completed=7, newest=7), RankState(entered=8, completed=6, newest=7)]
    assert decide(SaveRequest("a", 20.0), facts, 20.0) == Decision(RoundAnswer.FRESH, 7)


def test_to_stop_on_a_fresh_checkpoint_it_must_hold_the_last_step_entered() -> None:
    behind = [RankState(entered=8, completed=7, newest=7)]
    assert decide(SaveRequest("a", 20.0, stop=True), behind, 20.0).answer is RoundAnswer.SAVE
    level = [RankState(entered=8, completed=8, newest=8)]
    assert decide(SaveRequest("a", 20.0, stop=True), level, 20.0) == Decision(RoundAnswer.FRESH, 8, stop_after=8)


def test_a_save_in_flight_answers_when_another_would_come_too_late() -> None:
    facts = [
        RankState(entered=9, completed=8, in_flight=5, in_flight_seconds=2.0, forecast_seconds=9.0),
        RankState(entered=9, completed=8, newest=5, forecast_seconds=9.0),
    ]
    assert decide(SaveRequest("a", 4.0), facts, 4.0) == Decision(RoundAnswer.IN_FLIGHT, 5, forecast_seconds=9.0)
    assert decide(SaveRequest("a", 1.0), facts, 1.0).answer is RoundAnswer.TOO_LATE


def test_a_held_gate_lets_no_step_in_and_hands_each_request_out_once() -> None:
    gate = Gate()
    assert gate.try_enter(1)
    assert gate.hold() == 1
    assert not gate.try_enter(2)
    gate.release(Decision(RoundAnswer.SAVE, 2, stop_after=2))
    assert gate.try_enter(2)
    assert gate.take_due(2)
    assert not gate.take_due(2)
    assert not gate.enter(3)
