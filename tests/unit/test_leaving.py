"""What follows when the ranks leave the loop: one verdict, whatever each of them says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RanksDisagree, StepsNotCommitted, StepsNotSaved
from holdfast.training.last_commit import CHEAP_SECONDS, MEASURED_CAPTURES, PositionCapture
from holdfast.training.leaving import Left, Verdict, verdict
from holdfast_contract.manifest import CheckpointRef

NEWEST = CheckpointRef(1, 4)
EARLY = Left(began=0, entered=7, committed=7, saved=4)


def test_what_was_committed_and_not_saved_is_saved() -> None:
    assert verdict({0: EARLY}, NEWEST, alone=True) == Verdict(save=True)
    assert verdict({0: replace(EARLY, entered=8)}, NEWEST, alone=True) == Verdict(save=True)


def test_what_is_saved_is_not_saved_again() -> None:
    assert verdict({0: replace(EARLY, saved=7)}, NEWEST, alone=True) == Verdict()


def test_a_session_that_entered_no_step_ends_quietly() -> None:
    assert verdict({0: Left(began=4, entered=4, committed=None, saved=4)}, NEWEST, alone=True) == Verdict()


def test_a_stop_leaves_the_last_save_to_the_request_for_it() -> None:
    assert verdict({0: EARLY, 1: replace(EARLY, stopped=True, committed=6)}, NEWEST, alone=False) == Verdict()


def test_a_stop_of_one_process_after_it_left_the_loop_saves_the_last_commit() -> None:
    """The save that the stop asked for is due at a step that never comes."""
    stopped = replace(EARLY, stopped=True)
    assert verdict({0: stopped}, NEWEST, alone=True) == Verdict(save=True)
    assert verdict({0: replace(stopped, inexact="donated")}, NEWEST, alone=True) == Verdict()


def test_a_loop_that_is_left_in_its_first_step_ends_quietly() -> None:
    """A restarted run whose program finds at once that it is done has trained nothing."""
    first = Left(began=4, entered=5, committed=None, saved=4)
    assert verdict({0: first}, NEWEST, alone=True) == Verdict()
    assert isinstance(verdict({0: replace(first, finished=True)}, NEWEST, alone=True).error, StepsNotCommitted)


def test_steps_without_any_commit_are_an_error() -> None:
    found = verdict({0: Left(began=4, entered=9, committed=None, saved=4)}, NEWEST, alone=True)
    assert isinstance(found.error, StepsNotCommitted)
    assert (found.save, found.error.first, found.error.last) == (False, 5, 9)


def test_a_last_step_without_a_commit_is_an_error_and_what_was_committed_is_saved() -> None:
    found = verdict({0: replace(EARLY, entered=8, finished=True)}, NEWEST, alone=True)
    assert isinstance(found.error, StepsNotCommitted)
    assert (found.save, found.error.first, found.error.last) == (True, 8, 8)
    assert verdict({0: replace(EARLY, entered=8)}, NEWEST, alone=True).error is None, "a loop may be left in mid-step"


def test_what_cannot_be_saved_exactly_is_named_with_the_newest_checkpoint() -> None:
    found = verdict({0: EARLY, 1: replace(EARLY, entered=8, inexact="donated")}, NEWEST, alone=True)
    assert isinstance(found.error, StepsNotSaved)
    assert not found.save
    assert str(found.error).startswith("steps 5 to 7: committed and not saved")
    for part in ("process 1: donated", "attempt 1, step 4", "`save=True`"):
        assert part in str(found.error)


@pytest.mark.parametrize("change", [{"committed": 6}, {"committed": None}, {"saved": 7}])
def test_ranks_that_left_at_different_steps_are_both_named(change: dict[str, Any]) -> None:
    found = verdict({0: EARLY, 1: EARLY, 2: replace(EARLY, **change)}, NEWEST, alone=True)
    assert isinstance(found.error, RanksDisagree)
    assert not found.save
    assert set(found.error.found) == {0, 2}
    assert "process 0" in str(found.error)
    assert "process 2" in str(found.error)


_left = st.builds(
    Left,
    began=st.just(2),
    entered=st.integers(2, 5),
    committed=st.none() | st.integers(2, 5),
    saved=st.integers(2, 5),
    finished=st.booleans(),
    stopped=st.booleans(),
    inexact=st.sampled_from(["", "donated"]),
)


@given(st.lists(_left, min_size=1, max_size=3))
def test_nothing_is_lost_in_silence(ranks: list[Left]) -> None:
    left = dict(enumerate(ranks))
    found = verdict(left, NEWEST, alone=True)
    assert found.save or found.error is not None or any(r.stopped for r in ranks) or not any(map(_loses, ranks))
    assert not (found.save and any(r.is_unsaved and r.inexact for r in ranks)), "what is not exact is never saved"


def _loses(rank: Left) -> bool:
    return rank.is_unsaved or (rank.committed is None and rank.entered > rank.began + (0 if rank.finished else 1))


class Data:
    """An iterator whose position takes some time to say."""

    def __init__(self, *seconds: float) -> None:
        self.left, self.now, self.asked = list(seconds), 0.0, 0

    def get_state(self) -> int:
        self.now += self.left.pop(0) if self.left else 0.0
        self.asked += 1
        return self.asked

    def set_state(self, state: int) -> None: ...


def test_a_position_is_captured_at_each_commit_while_that_is_cheap() -> None:
    data = Data(50 * CHEAP_SECONDS)  # the first has more to do
    capture = PositionCapture(lambda: data.now)
    assert all(capture.at_commit(data) is not None for _ in range(10))
    assert capture.at_commit(None) is None


def test_a_position_that_costs_much_is_asked_for_a_few_times_only() -> None:
    data = Data(*[2 * CHEAP_SECONDS] * 10)
    capture = PositionCapture(lambda: data.now)
    captured = [capture.at_commit(data) for _ in range(10)]
    assert [position is not None for position in captured] == [True] * MEASURED_CAPTURES + [False] * 7
    assert data.asked == MEASURED_CAPTURES
