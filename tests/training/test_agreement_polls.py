"""The agreement with main threads that come by often, seldom, or no more: real threads, one store."""

from __future__ import annotations

import threading

import pytest

from holdfast.distributed.agreement import Decision, RankState, RoundAnswer
from holdfast.distributed.agreement_thread import Agreement
from holdfast.distributed.coordination import LocalCoordination
from holdfast_contract.sync import SaveRequest
from tests.support.polling import until


class RankView(LocalCoordination):
    """One rank's view of a store that several ranks of this process share."""

    def __init__(self, shared: LocalCoordination, index: int, count: int) -> None:
        self.__dict__.update(shared.__dict__)
        self.process_index, self.process_count = index, count


class Rank:
    """An agreement and a main thread that enters a step every ``pause_seconds`` until it is stopped."""

    def __init__(self, coordination: LocalCoordination, pause_seconds: float) -> None:
        self.pause_seconds = pause_seconds
        self.decisions: dict[str, Decision] = {}
        self.saved: set[int] = set()
        self.stop = threading.Event()
        self.agreement = Agreement(coordination, facts=self.facts, agreed=self.agreed)
        self._thread = threading.Thread(target=self.train)

    def facts(self) -> RankState:
        return RankState(completed=max(0, self.agreement.gate.entered - 1))

    def agreed(self, request: SaveRequest, decision: Decision) -> None:
        self.decisions[request.id] = decision

    def start(self) -> None:
        self.agreement.start()
        self._thread.start()

    def train(self) -> None:
        gate = self.agreement.gate
        while not self.stop.wait(self.pause_seconds) and gate.enter(gate.entered + 1):
            if gate.take_due(gate.entered):
                self.saved.add(gate.entered)

    def end(self) -> None:
        self.stop.set()
        self._thread.join(30)
        self.agreement.close()
        assert not self._thread.is_alive()


def wait_for(ranks: list[Rank], ask_id: str, *, saved: bool) -> None:
    until(
        lambda: all(ask_id in r.decisions and (not saved or r.decisions[ask_id].step in r.saved) for r in ranks),
        30,
        ask_id,
        seen=lambda: [(r.decisions, r.saved) for r in ranks],
    )


@pytest.mark.parametrize(
    "pauses",
    [(0.0005, 0.0005), (0.0005, 0.1), (0.1, 0.0005), (0.3, 0.2)],
    ids=["dense", "1 sparse", "0 sparse", "both"],
)
def test_however_often_the_loops_come_by_they_save_the_same_step(pauses: tuple[float, float]) -> None:
    shared = LocalCoordination()
    ranks = [Rank(RankView(shared, index, 2), pause) for index, pause in enumerate(pauses)]
    for rank in ranks:
        rank.start()
    for number in range(3):
        ranks[number % 2].agreement.ask(SaveRequest(f"ask-{number}", 30.0))
        # A loop that comes by seldom would take long to walk to the step of one that runs ahead: its decision counts.
        wait_for(ranks, f"ask-{number}", saved=False)
        first, second = (rank.decisions[f"ask-{number}"] for rank in ranks)
        assert first == second
        assert first.answer is RoundAnswer.SAVE
    for rank in ranks:
        rank.pause_seconds = 0.0
    for number in range(3):
        wait_for(ranks, f"ask-{number}", saved=True)
    assert ranks[0].saved == ranks[1].saved == {d.step for d in ranks[0].decisions.values()}
    for rank in ranks:
        rank.end()


def test_a_loop_that_comes_by_no_more_does_not_hold_the_decision() -> None:
    """It sits in a collective or waits for data: its background thread speaks for it."""
    shared = LocalCoordination()
    ranks = [Rank(RankView(shared, index, 2), pause) for index, pause in enumerate((0.001, 3600.0))]
    for rank in ranks:
        rank.start()
    ranks[0].agreement.ask(SaveRequest("a", 30.0))
    wait_for(ranks, "a", saved=False)
    assert ranks[0].decisions == ranks[1].decisions
    for rank in ranks:
        rank.end()


def test_a_process_that_says_nothing_is_named_and_the_others_go_on() -> None:
    shared = LocalCoordination()
    alone = Rank(RankView(shared, 0, 2), 0.001)
    alone.start()
    alone.agreement.ask(SaveRequest("a", 1.0))
    wait_for([alone], "a", saved=False)
    decision = alone.decisions["a"]
    assert decision.answer is RoundAnswer.ABANDONED
    assert "no answer from process(es) [1]" in decision.reason
    entered = alone.agreement.gate.entered
    until(lambda: alone.agreement.gate.entered > entered + 3, 30, "the loop goes on")
    alone.end()
