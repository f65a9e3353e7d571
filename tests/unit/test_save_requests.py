"""The table of save requests: every way from a request to its outcome, and random orders of everything."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.distributed.agreement import Decision, RoundAnswer
from holdfast.training.save_requests import (
    Agreed,
    Answer,
    Effect,
    Event,
    Propose,
    Requested,
    RequestTable,
    SaveBegan,
    SaveEnded,
    TakeBack,
    TakenBack,
    TrainingEnded,
    Withdrawn,
    react,
)
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import MAX_LIST, SaveReport, SaveRequest

A = SaveRequest("a", 20.0)
STOP = SaveRequest("a", 20.0, stop=True)
FIVE, SEVEN = CheckpointRef(1, 5, "d"), CheckpointRef(1, 7, "e")


def after(*events: Event, table: RequestTable | None = None) -> tuple[RequestTable, list[Effect]]:
    """The table and all effects after these events."""
    table, effects = table or RequestTable(), []
    for event in events:
        table, more = react(table, event)
        effects += more
    return table, effects


def outcomes(effects: Sequence[Effect], request_id: str = "a") -> list[SaveOutcome]:
    """What was answered to a request, in order."""
    return [e.report.outcome for e in effects if isinstance(e, Answer) and e.report.id == request_id]


def save_at(step: int, request: SaveRequest = A) -> Agreed:
    return Agreed(request, Decision(RoundAnswer.SAVE, step, forecast_seconds=1.5), None)


def test_a_request_is_proposed_agreed_saved_and_answered() -> None:
    _, effects = after(Requested(A), save_at(7), SaveBegan(7), SaveEnded(7, SEVEN))
    assert effects == [
        Answer(SaveReport("a", SaveOutcome.PENDING)),
        Propose(A),
        Answer(SaveReport("a", SaveOutcome.PENDING, forecast_seconds=1.5)),
        Answer(SaveReport("a", SaveOutcome.COMMITTED, checkpoint=SEVEN)),
    ]


def test_a_save_of_another_step_answers_only_what_was_agreed_up_to_it() -> None:
    table, effects = after(Requested(A), SaveBegan(5), SaveEnded(5, FIVE), save_at(7), SaveBegan(6), SaveEnded(6, FIVE))
    assert outcomes(effects) == [SaveOutcome.PENDING, SaveOutcome.PENDING]
    assert outcomes(after(SaveEnded(8, SEVEN), table=table)[1]) == [SaveOutcome.COMMITTED]


def test_a_failed_save_is_the_outcome_with_its_reason() -> None:
    _, effects = after(save_at(7), SaveBegan(7), SaveEnded(7, None, "disk full"))
    assert effects[-1] == Answer(SaveReport("a", SaveOutcome.FAILED, reason="disk full"))


def test_an_agreement_that_arrives_after_the_end_of_its_save_is_answered_by_it() -> None:
    assert outcomes(after(SaveBegan(7), SaveEnded(7, SEVEN), save_at(7))[1]) == [SaveOutcome.COMMITTED]


def test_a_save_in_flight_answers() -> None:
    in_flight = Agreed(A, Decision(RoundAnswer.IN_FLIGHT, 5), None)
    table, effects = after(SaveBegan(5), in_flight)
    assert outcomes(effects) == [SaveOutcome.PENDING]
    assert outcomes(after(SaveEnded(5, FIVE), table=table)[1]) == [SaveOutcome.COMMITTED]
    assert outcomes(after(SaveBegan(5), SaveEnded(5, FIVE), in_flight)[1]) == [SaveOutcome.COMMITTED]
    assert outcomes(after(Agreed(A, Decision(RoundAnswer.IN_FLIGHT, 5), FIVE))[1]) == [SaveOutcome.COMMITTED]
    (answer,) = after(in_flight)[1]
    assert answer == Answer(SaveReport("a", SaveOutcome.FAILED, reason="the save of step 5 is not known"))


def test_answers_without_a_save() -> None:
    fresh = Agreed(A, Decision(RoundAnswer.FRESH, 5), FIVE)
    assert after(fresh)[1] == [Answer(SaveReport("a", SaveOutcome.FRESH, checkpoint=FIVE))]
    late = Agreed(A, Decision(RoundAnswer.TOO_LATE, reason="r", forecast_seconds=9.0), None)
    assert after(late)[1] == [Answer(SaveReport("a", SaveOutcome.TOO_LATE, reason="r", forecast_seconds=9.0))]
    abandoned = Agreed(A, Decision(RoundAnswer.ABANDONED, reason="r"), None)
    assert after(abandoned)[1] == [Answer(SaveReport("a", SaveOutcome.FAILED, reason="r"))]


def test_only_the_agents_requests_are_withdrawn_and_only_before_the_ranks_agree() -> None:
    others = [Requested(SaveRequest(i, 20.0)) for i in ("sigterm", "program/0-1", "policy/3")]
    table, _ = after(Requested(A), *others)
    table, effects = after(Withdrawn(), table=table)
    assert effects == [TakeBack("a")]
    table, effects = after(TakenBack("a"), table=table)
    assert outcomes(effects) == [SaveOutcome.CANCELLED]
    assert set(table.open) == {"sigterm", "program/0-1", "policy/3"}


def test_a_request_that_is_repeated_after_its_answer_changes_nothing_unless_it_asks_for_more() -> None:
    table, _ = after(Requested(A), save_at(7), SaveEnded(7, SEVEN))
    assert after(Requested(A), table=table) == (table, [])
    asks_to_stop, effects = after(Requested(STOP), table=table)
    assert effects == [Propose(STOP)]
    stopped, _ = after(save_at(9, STOP), SaveEnded(9, SEVEN), table=asks_to_stop)
    assert not asks_to_stop.stopped_saved
    assert stopped.stopped_saved


def test_a_stop_that_came_too_late_is_not_saved() -> None:
    table, _ = after(Requested(STOP), Agreed(STOP, Decision(RoundAnswer.TOO_LATE, stop_after=3, reason="r"), None))
    assert table.stop_outcome is SaveOutcome.TOO_LATE
    assert not table.stopped_saved


def test_after_the_end_everything_is_answered_at_once() -> None:
    table, effects = after(Requested(A), TrainingEnded(SEVEN))
    assert outcomes(effects) == [SaveOutcome.PENDING, SaveOutcome.COMMITTED]
    late, effects = after(Requested(SaveRequest("b", 5.0)), table=table)
    assert effects == [Answer(SaveReport("b", SaveOutcome.FAILED, reason="training has ended"))]
    assert outcomes(after(save_at(9, SaveRequest("c", 5.0)), table=late)[1], "c") == [SaveOutcome.COMMITTED]


ids = st.sampled_from(["a", "b", "sigterm", "program/0-1", "policy/3"])
requests = st.builds(SaveRequest, ids, st.none() | st.floats(0, 100), st.booleans())
steps = st.integers(0, 12)
references = st.none() | st.builds(CheckpointRef, st.just(1), steps, st.just("d"))
events = st.one_of(
    st.builds(Requested, requests),
    st.builds(Withdrawn),
    st.builds(TakenBack, ids),
    st.builds(Agreed, requests, st.builds(Decision, st.sampled_from(RoundAnswer), steps), references),
    st.builds(SaveBegan, steps),
    st.builds(SaveEnded, steps, references, st.just("why")),
)


@given(st.lists(events, max_size=60))
def test_in_any_order_each_request_has_one_outcome_at_a_time_and_the_end_leaves_none_open(
    happened: list[Event],
) -> None:
    table = RequestTable()
    for event in [*happened, TrainingEnded(None, "over")]:
        before = table
        table, effects = react(table, event)
        final = [e.report.id for e in effects if isinstance(e, Answer) and e.report.outcome is not SaveOutcome.PENDING]
        assert len(final) == len(set(final))
        for request_id in final:
            assert request_id not in table.open
        assert set(before.open) - set(table.open) <= set(final), "no request vanishes without an outcome"
        assert len(table.answered) <= MAX_LIST
    assert not table.open


def test_the_table_does_not_grow_with_the_number_of_requests() -> None:
    table = RequestTable()
    for number in range(3 * MAX_LIST):
        for request_id in (f"n{number}", f"policy/{number}", f"program/0-{number}"):
            table, _ = after(save_at(number, SaveRequest(request_id)), SaveEnded(number, SEVEN), table=table)
    assert len(table.answered) == MAX_LIST
    assert not table.open
