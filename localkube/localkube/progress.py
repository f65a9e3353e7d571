"""Progress reports: one line per event, with the seconds since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_message: str) -> None:
    """Report nothing."""


def to_stderr() -> Progress:
    """A reporter that writes the elapsed time and the message to stderr."""
    started = time.monotonic()

    def report(message: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {message}", file=sys.stderr, flush=True)

    return report
