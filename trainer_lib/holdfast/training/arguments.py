"""Arguments of a call in the loop: converted where nothing is lost, refused by name where something would be."""

from __future__ import annotations

import operator
from typing import Any


def as_flag(name: str, value: Any) -> bool:
    """A Python bool, or one NumPy or JAX bool, as a Python bool; waits until a JAX value is computed.

    Raises:
        TypeError: it is anything else.
    """
    if isinstance(value, bool):
        return value
    if _kind(value) == "b" and value.shape == ():
        return bool(value)
    raise TypeError(f"{name}: found {value!r:.100}, allowed: True | False, or one NumPy or JAX bool")


def as_step(name: str, value: Any) -> int:
    """A whole number of Python, NumPy or JAX, as a Python int.

    Raises:
        TypeError: it is a bool, a float or no number. ValueError: it is negative.
    """
    allowed = "a whole number of 0 or more"
    if isinstance(value, bool) or _kind(value) == "b":
        raise TypeError(f"{name}: found {value!r}, allowed: {allowed}")
    try:
        step = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: found {value!r:.100}, allowed: {allowed}") from None
    if step < 0:
        raise ValueError(f"{name}: found {step}, allowed: {allowed}")
    return step


def _kind(value: Any) -> str:
    """NumPy's letter for the dtype of an array or an array's scalar; "" for other values."""
    return getattr(getattr(value, "dtype", None), "kind", "")
