"""The releases of JAX and Orbax whose internals were checked, and whether the installed ones are among them.

It reads package metadata and imports neither, because importing Orbax can take longer than a whole restart.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Final

CHECKED: Final = {"jax": ((0, 10, 2), (0, 11, 0)), "orbax-checkpoint": ((0, 12, 3), (0, 13, 0))}
"""By distribution: from the first release up to, but not including, the second; as in the package's requirements."""


@cache
def require_checked(distribution: str) -> None:
    """Raise ImportError unless the installed release was checked."""
    installed = version(distribution)
    found = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    first, below = CHECKED[distribution]
    if not first <= found < below:
        allowed = f">={'.'.join(map(str, first))},<{'.'.join(map(str, below))}"
        raise ImportError(f"{distribution}: found {installed}, allowed: {allowed}")
