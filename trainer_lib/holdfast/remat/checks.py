"""Checks of arguments, whose errors name the argument, what was found and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def require_names(where: str, names: Iterable[object], *, empty_allowed: bool = False) -> frozenset[str]:
    """The names as a set.

    Args:
        where: name of the argument, for errors.
        names: the names to check.
        empty_allowed: whether there may be none.

    Raises:
        ValueError: a name is not a non-empty string, or there is none.
        TypeError: ``names`` is a single string.
    """
    if isinstance(names, str):
        raise TypeError(f"{where}: found the single string {names!r}, allowed: several names, one argument each")
    found = list(names)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: found {name!r}, allowed: non-empty strings")
    if not found and not empty_allowed:
        raise ValueError(f"{where}: found no name, allowed: one or more names given to checkpoint_name")
    return frozenset(str(name) for name in found)


def require_int(where: str, value: object, *, minimum: int) -> int:
    """``value``, the argument named ``where``. Raises ValueError unless it is a whole number of ``minimum`` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{where}: found {value!r}, allowed: a whole number of {minimum} or more")
    return value


def require_fraction(where: str, value: object) -> float:
    """``value``, the argument named ``where``. Raises ValueError unless 0 < value <= 1."""
    right_type = isinstance(value, int | float) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not 0 < value <= 1:  # type: ignore[arg-type, operator]
        raise ValueError(f"{where}: found {value!r}, allowed: a number above 0 and at most 1")
    return float(value)  # type: ignore[arg-type]


def require_callable(where: str, value: Callable[..., T]) -> Callable[..., T]:
    """``value``, the argument named ``where``. Raises TypeError unless it is callable."""
    if not callable(value):
        raise TypeError(f"{where}: found {value!r:.100}, allowed: a callable")
    return value
