"""Regular files of a checkpoint: opened for reading, never through a link, and read in parts."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_MOST_BUFFERS: Final = 1000
"""Linux accepts 1,024 in one call (IOV_MAX)."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading, closed at the end. Raises OSError, also when it is not a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield fd
    finally:
        os.close(fd)


def read_range(path: Path, offset: int, length: int | None) -> bytes:
    """Part of a file.

    Args:
        path: a regular file.
        offset: first byte.
        length: number of bytes; None for all that follow.

    Raises:
        OSError: the file cannot be read.
        EOFError: the file is shorter.
    """
    with opened(path) as fd:
        found = bytearray(os.fstat(fd).st_size - offset if length is None else length)
        fill(fd, [memoryview(found)], offset, path)
    return bytes(found)


def fill(fd: int, views: Sequence[memoryview], offset: int, path: Path) -> None:
    """Fill memory from a file.

    Args:
        fd: the open file.
        views: memory to fill, one after the other.
        offset: first byte to read.
        path: the file's name for errors.

    Raises:
        OSError: the file cannot be read.
        EOFError: the file is shorter.
    """
    left = [view for view in views if len(view)]
    first = 0
    while first < len(left):
        count = os.preadv(fd, left[first : first + _MOST_BUFFERS], offset)
        if count == 0:
            raise EOFError(f"{path}: ends at byte {offset}")
        offset += count
        while first < len(left) and count >= len(left[first]):
            count -= len(left[first])
            first += 1
        if count:
            left[first] = left[first][count:]


def forget(path: Path) -> None:
    """Drop a file from the page cache where the system allows it, so the next read reaches storage. Raises OSError."""
    with opened(path) as fd:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
