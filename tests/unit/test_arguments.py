"""Arguments of the loop's calls: converted where nothing is lost, refused by name where something would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.training.arguments import as_flag, as_step

TRUE = np.asarray(1) > 0
YES = [True, np.bool_(True), TRUE, np.array(True)]
NO_FLAGS = [1, 0.0, None, "yes", np.int64(1), np.array([True]), np.array([True, False])]
STEPS = [3, np.int64(3), np.uint8(3), np.array(3)]
NO_STEPS = [3.0, np.float32(3), np.array([3]), True, np.bool_(True), "3", None]


@pytest.mark.parametrize("value", YES, ids=repr)
def test_one_bool_of_any_kind_is_a_bool(value: Any) -> None:
    assert as_flag("keep", value) is True


@pytest.mark.parametrize("value", NO_FLAGS, ids=repr)
def test_what_is_no_bool_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"keep: found .*, allowed: True"):
        as_flag("keep", value)


@pytest.mark.parametrize("value", STEPS, ids=repr)
def test_a_whole_number_of_any_kind_is_a_step(value: Any) -> None:
    step = as_step("step", value)
    assert (step, type(step)) == (3, int)


@pytest.mark.parametrize("value", NO_STEPS, ids=repr)
def test_what_is_no_whole_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"step: found .*, allowed: a whole number of 0 or more"):
        as_step("step", value)


def test_a_step_is_not_negative() -> None:
    with pytest.raises(ValueError, match="step: found -1"):
        as_step("step", -1)
