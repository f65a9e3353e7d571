"""Checks of single values. Each error names the field, what was found and what is allowed."""

from __future__ import annotations

import math


def require_int(name: str, value: object, *, minimum: int) -> None:
    """Require a whole number that is at least ``minimum``.

    Args:
        name: the field, for the message.
        value: what was given. A bool is not a whole number here.
        minimum: the smallest allowed value.

    Raises:
        ValueError: it is another type, or smaller.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: found {value!r}, allowed: a whole number of {minimum} or more")


def require_positive(name: str, value: object) -> None:
    """Require a finite number above 0. Raises ValueError that names the field ``name``."""
    right_type = isinstance(value, int | float) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{name}: found {value!r}, allowed: a finite number above 0")
