"""Workers may say anything that the endpoint lets in: no word of theirs stops the operator or breaks the status."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_contract.manifest import CheckpointRef, Owner, Rejection
from holdfast_contract.reasons import Bucket, Cause, SaveOutcome
from holdfast_contract.sync import (
    PROTOCOL,
    Inspection,
    Progress,
    Report,
    SaveReport,
    TrainerExit,
    TrainerPhase,
)
from holdfast_operator.decide import job_goodput
from tests.support.operator.decide_world import World

numbers = st.integers(0, 2**53)
seconds = st.floats(0, 1.7e308, allow_nan=False, allow_infinity=False)
words = st.one_of(st.sampled_from(["", "1-1", "1-2", "x" * 4096]), st.text(max_size=40))
refs = st.builds(CheckpointRef, st.one_of(numbers, st.just(1)), numbers, words)
maybe_ref = st.one_of(st.none(), refs)
progress = st.builds(
    Progress,
    numbers,
    st.one_of(st.none(), numbers),
    st.one_of(st.none(), seconds),
    st.dictionaries(words, seconds, max_size=40),
)
reports = st.builds(
    Report,
    st.just(PROTOCOL),
    st.one_of(st.just(1), numbers),
    words,
    st.sampled_from(TrainerPhase),
    st.one_of(
        st.none(),
        st.builds(
            TrainerExit,
            st.one_of(st.just(1), numbers),
            numbers,
            numbers,
            st.one_of(st.none(), st.sampled_from(Cause)),
            words,
        ),
    ),
    st.one_of(st.none(), progress),
    maybe_ref,
    st.lists(st.builds(SaveReport, words, st.sampled_from(SaveOutcome), maybe_ref, words), max_size=3).map(tuple),
    maybe_ref,
    st.lists(st.builds(Rejection, numbers, numbers, words), max_size=20).map(tuple),
    st.one_of(
        st.none(),
        st.builds(
            Inspection,
            numbers,
            st.lists(refs, max_size=2).map(tuple),
            st.one_of(st.none(), st.builds(Owner, words, words, words, numbers)),
            words,
        ),
    ),
    st.dictionaries(st.one_of(st.sampled_from([b.value for b in Bucket]), words), seconds, max_size=12),
    st.one_of(st.none(), seconds),
    words,
)


def strike(world: World, said: list[Report]) -> None:
    """All workers say this, and the operator goes on for some passes; every status it writes must be valid."""
    for index, report in enumerate(said):
        world.agent(index).say(world.now, **{name: getattr(report, name) for name in report.__dataclass_fields__})
    for _ in range(8):
        plan = world.reconcile()
        plan.status.model_dump_json(by_alias=True, exclude_none=True)
        until: Any = world.status.goodput.accounted_until
        if until is not None:
            assert all(0 <= ms < 2**53 for ms in job_goodput.milliseconds(world.status).values())


@settings(max_examples=150, deadline=None)
@given(st.lists(reports, min_size=2, max_size=2))
def test_nothing_that_is_said_while_training_stops_the_operator(said: list[Report]) -> None:
    world = World()
    world.settle(world.training)
    strike(world, said)


@settings(max_examples=100, deadline=None)
@given(st.lists(reports, min_size=2, max_size=2))
def test_nothing_that_is_said_before_the_first_attempt_stops_the_operator(said: list[Report]) -> None:
    world = World()
    world.reconcile()
    world.tick()
    strike(world, said)
    assert world.status.attempt < 1_000_000
