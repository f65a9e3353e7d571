"""Metrics of a step as plain numbers, for the rules that look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_contract import defaults

REMEMBERED_VALUES: Final = defaults.LONGEST_WINDOW
"""How many values of a watched metric are remembered, and how long the window of a rule may be."""


def as_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as Python floats. Waits until they are computed. Raises TypeError that names the wrong one."""
    values = {}
    for name, value in metrics.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metrics[{name!r}]: found {type(value).__name__} ({error}), allowed: one number") from None
    return values


def as_finite_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of the metrics that can be read and are finite, as Python floats.

    Messages must not carry NaN or infinity. The metrics of a step that failed cannot be read.
    """
    numbers = {name: readable(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if number is not None and abs(number) < float("inf")}


def readable(value: Any) -> float | None:
    """One metric as a Python float; None if it is no number, or if the computation of it failed."""
    try:
        return float(value)
    except Exception:  # what JAX raises for a failed computation has no common type
        return None
