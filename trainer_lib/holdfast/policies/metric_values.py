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
    """Those of the metrics that are finite, as Python floats; messages must not carry NaN or infinity."""
    return {name: value for name, value in as_floats(metrics).items() if abs(value) < float("inf")}
