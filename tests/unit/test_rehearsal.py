"""What a restart could not restore is listed at the commit, every leaf of it, without a number being read."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from holdfast.state.changes import Allowed
from holdfast.state.rehearsal import outline_of, refusal, refusals


def array(*shape: int, dtype: Any = np.float32, **options: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, **options)  # type: ignore[no-untyped-call]


def test_equal_states_have_no_difference() -> None:
    state = {"w": array(2, 3), "step": 0, "table": np.arange(3)}
    assert refusals(state, dict(state)) == ()
    assert refusal(state, dict(state)) == ""


def test_every_difference_is_listed_by_path() -> None:
    asked = {"w": array(2), "m": array(3), "step": 0, "gone": array(1), "deep": {"k": np.zeros(3)}}
    committed = {"w": array(2, dtype=np.float16), "m": array(4), "step": 0.5, "more": 1, "deep": {"k": array(4)}}
    assert sorted(refusals(asked, committed)) == [
        "['deep']['k']: expected numpy float64[3], found array float32[4]",
        "['gone']: expected array float32[1], found no such leaf",
        "['m']: expected array float32[3], found array float32[4]",
        "['more']: expected no such leaf, found scalar int[]",
        "['step']: expected scalar int[], found scalar float[]",
        "['w']: expected array float32[2], found array float16[2]",
    ]
    assert refusal(asked, committed).startswith("a restart could not restore this state, 6 reason(s)")


def test_every_leaf_that_cannot_be_stored_is_listed_once() -> None:
    asked = {"name": 0, "large": 0, "w": array(2)}
    found = refusals(asked, {"name": "a string", "large": 2**64, "w": array(3)})
    assert [line.split(", allowed")[0] for line in found] == [
        "['large']: found an int of 65 bits",
        "['name']: found str",
        "['w']: expected array float32[2], found array float32[3]",
    ]


def test_two_leaves_of_one_name_are_refused() -> None:
    found = refusals({"a.b": 1}, {"a.b": 1, "a": {"b": 2}})
    assert any("the stored name 'a.b'" in line for line in found)


def test_differences_that_were_named_at_the_restore_are_allowed() -> None:
    asked, committed = {"w": array(2), "head": array(5)}, {"w": array(2), "old": array(1)}
    assert refusals(asked, committed, Allowed(new=("head",), dropped=("old",))) == ()
    assert len(refusals(asked, committed, Allowed(new=("head",)))) == 1


def test_forms_and_weak_types_are_no_difference() -> None:
    asked = {"step": 0, "rate": array(weak_type=True), "table": np.zeros(3), "w": array(2)}
    committed = {"step": array(dtype=np.int32, weak_type=True), "rate": array(), "table": array(3), "w": array(2)}
    assert refusals(asked, committed) == ()


def test_an_outline_changes_with_every_leaf_that_a_restart_could_see() -> None:
    state = {"w": array(2), "best": None}
    same = {"w": array(2), "best": None}
    assert outline_of(state) == outline_of(same)
    for other in ({"w": array(3), "best": None}, {"w": array(2), "best": array(2)}, {"w": array(2, dtype=np.int32)}):
        assert outline_of(other) != outline_of(state)
