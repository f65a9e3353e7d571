"""Requests for a save, from their arrival to an outcome, where no save comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from holdfast.distributed.agreement import Answer, Ask, Decision, RankState
from holdfast.distributed.agreement_thread import Agreement
from holdfast.distributed.coordination import LocalCoordination
from holdfast.training.runtime import Journal
from holdfast.training.save_requests import RequestDesk
from holdfast.training.saves import Saves
from holdfast_contract.local import AgentCommand
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveRequest


class Rig:
    """A desk and a real agreement of ``count`` ranks, of which only this one answers."""

    def __init__(self, count: int) -> None:
        self.coordination = LocalCoordination()
        self.coordination.process_count = count
        self.status = Journal().status
        self.desk = RequestDesk(self.status, 0)
        self.agreement = Agreement(self.coordination, facts=RankState, decided=self.desk.decided)
        self.desk.connect(self.agreement, cast("Saves", None))
        self.agreement.start()

    def outcome(self, request_id: str) -> SaveOutcome | None:
        report = self.status.save_report(request_id)
        return None if report is None else report.outcome


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.agreement.close()


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_request_that_is_withdrawn_before_the_ranks_agree_is_cancelled(rig: Rig) -> None:
    rig.desk.command(AgentCommand(SaveRequest("a", seconds_left=5.0)))
    assert rig.outcome("a") is SaveOutcome.PENDING
    rig.desk.command(AgentCommand(None))
    assert rig.outcome("a") is SaveOutcome.CANCELLED
    assert rig.agreement.gate.enter(1, timeout_seconds=5.0)


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_a_silent_rank_makes_a_request_fail_and_holds_nobody_for_long(rig: Rig) -> None:
    rig.desk.command(AgentCommand(SaveRequest("a", seconds_left=1.0)))
    assert rig.agreement.gate.enter(1, timeout_seconds=5.0)
    deadline = rig.coordination.get("round/3/decision", 10.0)
    assert Answer.ABANDONED.value in deadline
    rig.agreement.close()
    assert rig.outcome("a") is SaveOutcome.FAILED
    report = rig.status.save_report("a")
    assert report is not None
    assert "no answer from process(es) [1]" in report.reason


@pytest.mark.parametrize("rig", [1], indirect=True)
def test_what_is_still_open_at_the_end_of_training_is_answered(rig: Rig) -> None:
    rig.desk.command(AgentCommand(SaveRequest("a", seconds_left=20.0)))
    rig.coordination.get("round/1/decision", 10.0)
    rig.agreement.close()
    assert rig.outcome("a") is SaveOutcome.PENDING
    rig.desk.close(None, "training ended")
    assert rig.outcome("a") is SaveOutcome.FAILED


@pytest.mark.parametrize("rig", [1], indirect=True)
def test_a_stop_that_came_too_late_says_that_nothing_was_saved(rig: Rig) -> None:
    rig.desk.request(Ask("a", 20.0, stop=True))
    rig.agreement.close()
    rig.desk.decided(Ask("a", 20.0, stop=True), Decision(Answer.TOO_LATE, stop_after=3, reason="r"))
    assert rig.outcome("a") is SaveOutcome.TOO_LATE
    assert not rig.desk.stopped_saved
