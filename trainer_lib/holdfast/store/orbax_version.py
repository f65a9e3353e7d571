"""Which Orbax is installed, learnt without importing it: that takes longer than many a restart."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

SUPPORTED: Final = ((0, 12, 3), (0, 13, 0))
"""Versions of Orbax whose layout and handler were checked: from the first, below the second."""


def check_version() -> None:
    """Raises ImportError unless the Orbax that is installed is one whose layout was checked."""
    installed = version("orbax-checkpoint")
    found = tuple(int(part) for part in installed.split(".")[:3])
    first, below = SUPPORTED
    if not first <= found < below:
        allowed = f">={'.'.join(map(str, first))},<{'.'.join(map(str, below))}"
        raise ImportError(f"orbax-checkpoint: found {installed}, allowed: {allowed}")
