"""Locks between processes. The kernel frees a lock when its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localkube.errors import BinariesError
from localkube.progress import Progress

_WAIT_SECONDS = 1800
_REPORT_SECONDS = 10
_POLL_SECONDS = 0.2


@contextmanager
def exclusive_lock(path: Path, *, what: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`.

    While another process holds it, `progress` is called every ten seconds with a line that names `what` that process
    does. Raises BinariesError after half an hour.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(handle, path, what=what, progress=progress)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, *, what: str, progress: Progress) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    report_at = 0.0
    while not try_lock(handle):
        now = time.monotonic()
        if now > deadline:
            raise BinariesError(f"another process has held {path} for {_WAIT_SECONDS} s")
        if now >= report_at:
            progress(f"waiting for another process: {what}")
            report_at = now + _REPORT_SECONDS
        time.sleep(_POLL_SECONDS)


def try_lock(handle: int) -> bool:
    """Take the lock of an open file without waiting. False if another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
