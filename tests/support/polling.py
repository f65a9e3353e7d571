"""Waiting for what another process, thread or server does: look again until it is so, or fail with what was seen last.

The deadline is there to end a test that would wait for ever; no test asserts how soon a condition holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
FIRST_PAUSE_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 0.05


def until(
    condition: Callable[[], T | None],
    seconds: float,
    what: str = "",
    *,
    seen: Callable[[], object] | None = None,
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
) -> T:
    """The first true value of the condition.

    condition: what is looked at again and again; seconds: the deadline; what: what is waited for, in words;
    seen: what a failure shows beside the condition's last value; longest_pause_seconds: between two looks, for a moment
    that passes quickly.
    """
    deadline = time.monotonic() + seconds
    pauses = _pauses(longest_pause_seconds)
    while not (value := condition()):
        assert time.monotonic() < deadline, _failure(seconds, what, value, seen)
        time.sleep(next(pauses))
    return value


async def until_async(
    condition: Callable[[], T | None],
    seconds: float,
    what: str = "",
    *,
    seen: Callable[[], object] | None = None,
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
) -> T:
    """The same within an event loop, which goes on meanwhile; its clock counts."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    pauses = _pauses(longest_pause_seconds)
    while not (value := condition()):
        assert clock() < deadline, _failure(seconds, what, value, seen)
        await asyncio.sleep(next(pauses))
    return value


def _pauses(longest_seconds: float) -> Iterator[float]:
    """Short at first, for most conditions hold soon; then longer, for a look may cost a request."""
    pause_seconds = min(FIRST_PAUSE_SECONDS, longest_seconds)
    while True:
        yield pause_seconds
        pause_seconds = min(1.5 * pause_seconds, longest_seconds)


def _failure(seconds: float, what: str, last: object, seen: Callable[[], object] | None) -> str:
    text = f"not within {seconds:g} s{what and ': '}{what}; last value: {last!r}"
    return text if seen is None else f"{text}\n{seen()}"
