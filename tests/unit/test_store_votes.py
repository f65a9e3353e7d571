from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import errors
from holdfast.distributed.coordination import LocalCoordination
from holdfast.distributed.votes import Ballot, Problem, ProblemKind, first_problem, problem_of
from tests.support.virtual_time import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.install(monkeypatch)
    return clock


class Ranks:
    """One in-process key-value store, seen as ``count`` ranks."""

    def __init__(self, count: int) -> None:
        shared = LocalCoordination()
        self.seen = [_As(shared, rank, count) for rank in range(count)]


class _As(LocalCoordination):
    def __init__(self, shared: LocalCoordination, rank: int, count: int) -> None:
        self.__dict__ = dict(shared.__dict__)  # the same values and lock
        self.process_index = rank
        self.process_count = count


def test_all_votes_arrive_with_long_payloads_whole(clock: Clock) -> None:
    ranks = Ranks(3)
    payloads = [f"{rank}" * 700_001 for rank in range(3)]
    for rank, coordination in enumerate(ranks.seen):
        Ballot(coordination, "q").cast(payload=payloads[rank])
    votes = Ballot(ranks.seen[2], "q").gather("all", deadline=clock.now + 5)
    assert [v.payload for v in votes] == payloads
    assert first_problem(votes) is None


def test_a_problem_ends_the_wait_before_the_others_have_voted(clock: Clock) -> None:
    ranks = Ranks(3)
    Ballot(ranks.seen[1], "q").cast(problem=Problem(ProblemKind.STORAGE, "full", "/p", 28))
    start = clock.now
    votes = Ballot(ranks.seen[0], "q").gather("all", deadline=start + 60)
    assert clock.now - start < 5
    blamed = first_problem(votes)
    assert blamed is not None
    assert (blamed.rank, blamed.problem) == (1, Problem(ProblemKind.STORAGE, "full", "/p", 28))


def test_who_is_silent_is_named_at_the_deadline(clock: Clock) -> None:
    ranks = Ranks(4)
    for rank in (0, 2):
        Ballot(ranks.seen[rank], "q").cast()
    with pytest.raises(errors.PeerLost, match="every part") as caught:
        Ballot(ranks.seen[0], "q").gather("every part", deadline=clock.now + 0.05)
    assert caught.value.missing == (1, 3)


def test_a_vote_cast_while_waiting_is_seen(clock: Clock) -> None:
    ranks = Ranks(2)
    Ballot(ranks.seen[0], "q").cast(payload="a")
    clock.after(0.05, lambda: Ballot(ranks.seen[1], "q").cast(payload="b"))
    votes = Ballot(ranks.seen[0], "q").gather("all", deadline=clock.now + 10)
    assert [v.payload for v in votes] == ["a", "b"]


def test_the_first_vote_of_a_rank_counts(clock: Clock) -> None:
    [one] = Ranks(1).seen
    ballot = Ballot(one, "q")
    ballot.cast(problem=Problem(ProblemKind.OTHER, "first"))
    ballot.cast(payload="second thoughts")
    [vote] = ballot.gather("all", deadline=clock.now + 1)
    assert vote.problem is not None
    assert vote.problem.message == "first"


def test_an_error_keeps_path_and_number_on_its_way_to_another_process() -> None:
    problem = problem_of(OSError(28, "No space left on device", "/a/b"), where=Path("/a"))
    assert (problem.kind, problem.path, problem.errno) == (ProblemKind.STORAGE, "/a/b", 28)
    problem = problem_of(errors.Superseded(Path("/r"), attempt=1, found="attempt 2 has begun"), where=Path("/a"))
    assert (problem.kind, problem.message) == (ProblemKind.SUPERSEDED, "attempt 2 has begun")
    assert problem_of(KeyError("x"), where=Path("/a")).kind is ProblemKind.OTHER
