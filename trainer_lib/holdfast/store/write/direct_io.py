"""Writing one large file past the page cache, and hashing it meanwhile.

Writing half a gibibyte through the page cache slows the training loop twice: the copy into the cache takes a core and memory
bandwidth, and writing it back takes both again. With O_DIRECT the device reads the snapshot's memory itself.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xxhash

from holdfast.store.format import fs
from holdfast.store.write.arena import PAGE_BYTES, Octets, octets_of, rounded_up

BLOCK_BYTES: Final = 8 * 1024 * 1024
"""Bytes per call: on a virtual disk 1 MiB was half as fast, 32 MiB no faster."""
_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""At most this much stays in the page cache where direct I/O is refused."""
_REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


@dataclass(frozen=True)
class Written:
    """What was written. ``hash_seconds``: how long writing waited for the digest. ``direct``: past the page cache to its end."""

    nbytes: int
    digest: str
    hash_seconds: float
    direct: bool


def write_file(path: Path, blocks: Iterable[Octets], nbytes: int) -> Written:
    """Write a new file; it is not durable until it is synced.

    Where direct I/O is refused (tmpfs, some network file systems), the data go through the page cache, and little of them
    stays there.

    Args:
        path: the file, which must not exist.
        blocks: the content in order. Each block begins on a page boundary and is a whole number of pages long.
        nbytes: length of the file in bytes; the rest of the last block is padding.

    Raises:
        OSError: the file exists, or storage refused the write.
    """
    hasher, hashing = xxhash.xxh3_128(), 0.0
    offset = 0
    with fs.operation("write", path), _File(path) as file, ThreadPoolExecutor(1, "holdfast-hash") as pool:
        for block in blocks:
            hashed = pool.submit(hasher.update, block.data[: max(0, nbytes - offset)])  # while the device writes
            file.write(block, offset)
            offset += block.nbytes
            written = time.monotonic()
            hashed.result()  # the next block may reuse the same memory
            hashing += time.monotonic() - written
        file.cut(nbytes)
        return Written(nbytes, hasher.hexdigest(), hashing, file.direct)


def blocks_of(memory: Octets, nbytes: int) -> Iterator[Octets]:
    """Blocks of ``memory``, which begins on a page boundary and holds ``nbytes`` rounded up to whole pages."""
    whole = rounded_up(nbytes, PAGE_BYTES)
    for start in range(0, whole, BLOCK_BYTES):
        yield memory[start : min(start + BLOCK_BYTES, whole)]


def gathered_blocks(parts: Iterable[tuple[int, Any]], nbytes: int) -> Iterator[Octets]:
    """Blocks filled from ``(offset in bytes, array)`` in order of offsets, zeros between; all reuse one block of memory."""
    block = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)
    start = 0
    for at, array in parts:
        rest, offset = octets_of(np.asarray(array)), at
        while rest.nbytes:
            while offset >= start + BLOCK_BYTES:
                yield block
                start += BLOCK_BYTES
                block[:] = 0
            count = min(rest.nbytes, start + BLOCK_BYTES - offset)
            block[offset - start : offset - start + count] = rest[:count]
            rest, offset = rest[count:], offset + count
    if nbytes > start:
        yield block[: rounded_up(nbytes - start, PAGE_BYTES)]


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._unsynced = 0

    def __enter__(self) -> Self:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        direct = getattr(os, "O_DIRECT", 0)
        try:
            self._fd, self.direct = os.open(self._path, flags | direct, 0o666), bool(direct)
        except OSError as error:
            if error.errno not in _REFUSED or not direct:
                raise
            # Linux has created the file by the time the file system refuses the flag.
            self._fd, self.direct = os.open(self._path, flags & ~os.O_EXCL, 0o666), False
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, block: Octets, offset: int) -> None:
        done = 0
        while done < block.nbytes:
            try:
                count = os.pwrite(self._fd, block.data[done:], offset + done)
            except OSError as error:
                if not self.direct or error.errno not in _REFUSED:
                    error.filename = error.filename or str(self._path)
                    raise
                self._use_page_cache()
                continue
            if self.direct and count % PAGE_BYTES:
                self._use_page_cache()  # a short write, as on a nearly full disk: the rest is not aligned
            done += count
        if not self.direct:
            self._trim_page_cache(offset + done, done)

    def cut(self, nbytes: int) -> None:
        """Cut the padding of the last page."""
        os.ftruncate(self._fd, nbytes)

    def _use_page_cache(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self.direct = False

    def _trim_page_cache(self, end: int, count: int) -> None:
        self._unsynced += count
        if self._unsynced >= _WINDOW_BYTES:
            os.fdatasync(self._fd)
            os.posix_fadvise(self._fd, 0, end, os.POSIX_FADV_DONTNEED)
            self._unsynced = 0
