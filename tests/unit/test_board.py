"""The board: who is told what, when, and who is held."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from holdfast_contract.sync import PROTOCOL, Action, Directive, Progress, Report, SaveRequest, TrainerPhase
from holdfast_operator.sync_endpoint.board import NOT_MEMBER, NOT_READY, Board, PodIdentity
from tests.support import virtual_time

ONE, TWO = PodIdentity("ns", "train-0-1", "u1"), PodIdentity("ns", "train-1-1", "u2")
REPORT = Report(PROTOCOL, 1, "", TrainerPhase.RUNNING)
RUN = Directive(Action.RUN, 1, coordinator="10.0.0.1:8477")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(scenario)


def test_a_changed_meaning_wakes_and_mere_progress_does_not() -> None:
    woken: list[tuple[str, str]] = []
    board = Board(lambda *key: woken.append(key))
    board.put_report(ONE, "train", REPORT)
    assert woken == [("ns", "train")]
    board.put_report(ONE, "train", replace(REPORT, progress=Progress(7), buckets={"idle": 3.0}))
    assert len(woken) == 1
    assert board.reports("ns", "train")[ONE].report.progress == Progress(7)
    board.put_report(ONE, "train", replace(REPORT, terminating_seconds_left=20.0))
    board.put_report(ONE, "train", replace(REPORT, terminating_seconds_left=19.0))
    assert len(woken) == 2
    board.put_report(ONE, "train", replace(REPORT, obeys="x"))
    assert len(woken) == 3


@pytest.mark.parametrize("field", ["attempt", "obeys", "phase", "storage_error"])
def test_meaning_keeps_what_decides(field: str) -> None:
    other: Any = {"attempt": 2, "phase": TrainerPhase.EXITED}.get(field, "else")
    assert replace(REPORT, **{field: other}).meaning() != REPORT.meaning()


def test_deadlines_shrink_while_they_wait() -> None:
    clock = Clock()
    board = Board(clock=clock)
    board.publish("ns", "train", {ONE: replace(RUN, save=SaveRequest("s1", 30.0))})
    clock.now += 12.5
    told = board.current(ONE, "train")
    assert isinstance(told, Directive)
    assert told.save == SaveRequest("s1", 17.5)
    clock.now += 100
    told = board.current(ONE, "train")
    assert isinstance(told, Directive)
    assert told.save == SaveRequest("s1", 0.0)


def test_who_does_not_obey_is_answered_at_once_and_who_does_is_held() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN})
        began = virtual_time.now()
        assert await board.directive(ONE, "train", "", 5.0) == RUN
        assert virtual_time.now() - began < 1
        assert await board.directive(ONE, "train", RUN.tag, 0.05) == RUN
        held = asyncio.create_task(board.directive(ONE, "train", RUN.tag, 5.0))
        await asyncio.sleep(0.01)
        board.publish("ns", "train", {ONE: RUN})  # says nothing new: stays held
        await asyncio.sleep(0.01)
        assert not held.done()
        board.publish("ns", "train", {ONE: replace(RUN, attempt=2)})
        assert (await asyncio.wait_for(held, 1)) == replace(RUN, attempt=2)

    run(scenario())


def test_a_removed_member_is_no_member_at_once() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN, TWO: RUN})
        held = asyncio.create_task(board.directive(TWO, "train", RUN.tag, 5.0))
        await asyncio.sleep(0.01)
        board.publish("ns", "train", {ONE: RUN})
        assert await asyncio.wait_for(held, 1) is NOT_MEMBER
        board.put_report(TWO, "train", REPORT)
        assert TWO not in board.reports("ns", "train")

    run(scenario())


def test_a_pod_younger_than_the_last_decision_is_not_sent_away() -> None:
    async def scenario() -> None:
        woken: list[tuple[str, str]] = []
        board = Board(lambda *key: woken.append(key), clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN})
        board.put_report(TWO, "train", REPORT)
        held = asyncio.create_task(board.directive(TWO, "train", "", 5.0))
        await asyncio.sleep(0.01)
        board.publish("ns", "train", {ONE: RUN})  # was observed before TWO existed
        await asyncio.sleep(0.01)
        assert not held.done()
        assert len(woken) == 2
        board.publish("ns", "train", {ONE: RUN, TWO: RUN})
        assert await asyncio.wait_for(held, 1) == RUN

    run(scenario())


def test_a_stranger_is_sent_away_by_the_second_decision_without_it() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN})
        board.put_report(TWO, "train", REPORT)
        held = asyncio.create_task(board.directive(TWO, "train", "", 5.0))
        for _ in range(2):
            await asyncio.sleep(0.01)
            board.publish("ns", "train", {ONE: RUN})
        assert await asyncio.wait_for(held, 1) is NOT_MEMBER

    run(scenario())


def test_before_the_first_decision_everybody_is_held_and_then_told_to_come_again() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.put_report(ONE, "train", REPORT)
        assert await board.directive(ONE, "train", "", 0.05) is NOT_READY
        held = asyncio.create_task(board.directive(ONE, "train", "", 5.0))
        await asyncio.sleep(0.01)
        board.publish("ns", "train", {ONE: RUN})
        assert await asyncio.wait_for(held, 1) == RUN

    run(scenario())


def test_a_closed_board_lets_everybody_go_and_an_opened_one_knows_nothing() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN})
        held = asyncio.create_task(board.directive(ONE, "train", RUN.tag, 5.0))
        await asyncio.sleep(0.01)
        board.close()
        assert await asyncio.wait_for(held, 1) is NOT_READY
        assert await board.directive(ONE, "train", "", 5.0) is NOT_READY
        board.open()
        assert board.current(ONE, "train") is NOT_READY

    run(scenario())


def test_a_forgotten_job_has_no_members() -> None:
    async def scenario() -> None:
        board = Board(clock=virtual_time.now)
        board.publish("ns", "train", {ONE: RUN})
        held = asyncio.create_task(board.directive(ONE, "train", RUN.tag, 5.0))
        await asyncio.sleep(0.01)
        board.forget("ns", "train")
        assert await asyncio.wait_for(held, 1) is NOT_MEMBER

    run(scenario())


def test_the_live_step_is_that_of_the_slowest_worker_that_trains() -> None:
    board = Board()
    assert board.slowest_step("ns", "train") is None
    board.put_report(ONE, "train", replace(REPORT, progress=Progress(7)))
    board.put_report(TWO, "train", replace(REPORT, progress=Progress(6)))
    assert board.slowest_step("ns", "train") == 6
    board.put_report(TWO, "train", replace(REPORT, phase=TrainerPhase.EXITED, progress=Progress(6)))
    assert board.slowest_step("ns", "train") == 7


def test_publishing_again_is_needed_for_a_change_and_for_a_pod_that_waits() -> None:
    board = Board()
    assert not board.has_published("ns", "train", {"u1": RUN}), "nothing was ever published"
    board.publish("ns", "train", {ONE: RUN})
    assert board.has_published("ns", "train", {"u1": RUN})
    assert board.has_published("ns", "train", None)
    assert not board.has_published("ns", "train", {"u1": replace(RUN, attempt=2)})
    assert not board.has_published("ns", "train", {"u1": RUN, "u2": RUN})
    board.put_report(TWO, "train", REPORT)
    assert not board.has_published("ns", "train", {"u1": RUN}), "it learns by the next set that it is no member"
