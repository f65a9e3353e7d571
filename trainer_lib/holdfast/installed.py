"""Releases of JAX and Orbax whose internals were checked, and whether the installed ones are among them.

Learnt without importing either: Orbax takes longer to import than many a restart takes.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Final

CHECKED: Final = {"jax": ((0, 10, 2), (0, 11, 0)), "orbax-checkpoint": ((0, 12, 3), (0, 13, 0))}
"""By distribution: from the first release, below the second. The library's own requirements say the same."""


@cache
def require_checked(distribution: str) -> None:
    """Raises ImportError unless the release that is installed was checked."""
    installed = version(distribution)
    found = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    first, below = CHECKED[distribution]
    if not first <= found < below:
        allowed = f">={'.'.join(map(str, first))},<{'.'.join(map(str, below))}"
        raise ImportError(f"{distribution}: found {installed}, allowed: {allowed}")
