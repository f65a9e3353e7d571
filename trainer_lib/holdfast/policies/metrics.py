"""Metrics of a step as plain numbers, for the rules that look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_contract import defaults

REMEMBERED_VALUES: Final = defaults.LONGEST_WINDOW
"""Of a metric that a rule watches; as many as its window can be."""


def as_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as Python floats; waits for them. Raises TypeError naming one that is no single number."""
    values = {}
    for name, value in metrics.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metrics[{name!r}]: found {type(value).__name__} ({error}), allowed: one number") from None
    return values


def as_finite_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers: messages carry no NaN."""
    return {name: value for name, value in as_floats(metrics).items() if abs(value) < float("inf")}
