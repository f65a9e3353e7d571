"""Requests for a save, from their arrival to an outcome, where no save comes of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.distributed.agreement import Decision, RankState, RoundAnswer
from holdfast.distributed.agreement_thread import Agreement
from holdfast.distributed.coordination import LocalCoordination
from holdfast.errors import RequestFailed
from holdfast.policies.save_rules import only_at_end
from holdfast.training.runtime import TrainerState
from holdfast.training.save_request_loop import SaveRequestLoop
from holdfast.training.save_requests import Agreed, SaveRequestQueue
from holdfast.training.schedule import Schedule
from holdfast_contract.local import AgentCommand
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveRequest
from tests.support.polling import until


class Rig:
    """The loop of requests and a real agreement of ``count`` ranks, of which only this one answers."""

    def __init__(self, count: int) -> None:
        self.coordination = LocalCoordination()
        self.coordination.process_count = count
        self.status = TrainerState().status
        self.events = SaveRequestQueue()
        self.agreement = Agreement(self.coordination, facts=RankState, agreed=self.agreed)
        schedule = Schedule(only_at_end(), 0)
        self.requests = SaveRequestLoop(
            self.events, agreement=self.agreement, status=self.status, schedule=schedule, process_index=0
        )
        self.agreement.start()
        self.requests.start()

    def agreed(self, request: SaveRequest, decision: Decision) -> None:
        self.events.put(Agreed(request, decision, None))

    def outcome(self, request_id: str) -> SaveOutcome | None:
        report = self.status.save_report(request_id)
        return None if report is None else report.outcome

    def wait(self, outcome: SaveOutcome) -> None:
        until(lambda: self.outcome("a") is outcome, 10, f"{outcome}, not {self.outcome('a')}")


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.requests.close()
    rig.agreement.close()


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_request_that_is_withdrawn_before_the_ranks_agree_is_cancelled(rig: Rig) -> None:
    rig.requests.command(AgentCommand(SaveRequest("a", seconds_left=5.0)))
    rig.wait(SaveOutcome.PENDING)
    rig.requests.command(AgentCommand(None))
    rig.wait(SaveOutcome.CANCELLED)
    assert rig.agreement.gate.enter(1, timeout_seconds=5.0)


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_silent_rank_makes_a_request_fail_and_holds_nobody_for_long(rig: Rig) -> None:
    rig.requests.command(AgentCommand(SaveRequest("a", seconds_left=1.0)))
    assert rig.agreement.gate.enter(1, timeout_seconds=5.0)
    deadline = rig.coordination.get("round/3/decision", 10.0)
    assert RoundAnswer.ABANDONED.value in deadline
    rig.wait(SaveOutcome.FAILED)
    report = rig.status.save_report("a")
    assert report is not None
    assert "no answer from process(es) [1]" in report.reason


@pytest.mark.parametrize("rig", [1], indirect=True)
def test_what_is_still_open_at_the_end_of_training_is_answered(rig: Rig) -> None:
    rig.requests.command(AgentCommand(SaveRequest("a", seconds_left=20.0)))
    rig.coordination.get("round/1/decision", 10.0)
    rig.agreement.close()
    rig.wait(SaveOutcome.PENDING)
    rig.requests.end(None, "training ended")
    assert rig.outcome("a") is SaveOutcome.FAILED


@pytest.mark.parametrize("rig", [1], indirect=True)
def test_a_stop_that_came_too_late_says_that_nothing_was_saved(rig: Rig) -> None:
    stop = SaveRequest("a", 20.0, stop=True)
    rig.agreement.close()
    rig.agreed(stop, Decision(RoundAnswer.TOO_LATE, stop_after=3, reason="r"))
    rig.wait(SaveOutcome.TOO_LATE)
    assert not rig.requests.stopped_saved


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_program_that_asks_around_the_end_always_has_an_answer(rig: Rig) -> None:
    before = rig.requests.request_of_program(20.0)
    rig.requests.end(None, "training ended at step 3 without it")
    after = rig.requests.request_of_program(20.0)
    rig.requests.close()
    closed = rig.requests.request_of_program(20.0)
    assert "training ended at step 3" in str(before.exception(10))
    for future in (after, closed):
        with pytest.raises(RequestFailed, match="training has ended"):
            future.result(10)
    rig.requests.close()


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_loop_that_ends_without_the_end_of_training_fails_what_the_program_asked_for(rig: Rig) -> None:
    open_request = rig.requests.request_of_program(20.0)
    rig.requests.close()
    with pytest.raises(RequestFailed, match="training has ended"):
        open_request.result(10)
