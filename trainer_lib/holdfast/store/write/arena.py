"""Host memory for snapshots: one mapping that is faulted in once and kept from save to save."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]

ALIGNMENT_BYTES: Final = 64
"""XLA's CPU client uses host memory with this alignment in place, and copies any other."""
PAGE_BYTES: Final = 4096
"""On common devices, direct I/O requires memory address, offset and length to be multiples of this."""
_LEAST_SHARED_BYTES: Final = 4 * 1024 * 1024
_THREADS: Final = min(4, os.cpu_count() or 1)
"""One core seldom saturates the memory bus; more than a few add nothing."""


class Arena:
    """Memory for one snapshot at a time. It grows to the largest request and never shrinks.

    Page faults on fresh memory cost ten times the copy, so there is one mapping for the life of the process, faulted in
    when it is made. It uses huge pages where the system has them, because a copy then has fewer TLB misses.
    """

    def __init__(self) -> None:
        self._memory: Octets = np.empty(0, np.uint8)
        self._pool: ThreadPoolExecutor | None = None

    def hold(self, nbytes: int) -> Octets:
        """At least ``nbytes`` of memory, in whole pages; overwrites the previous snapshot. Raises OSError."""
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(0, np.uint8)  # freed first, so that two mappings never exist at once
            self._memory = _mapped(rounded_up(nbytes, PAGE_BYTES))
        return self._memory

    @property
    def bytes(self) -> int:
        """Bytes of memory held."""
        return self._memory.nbytes

    def copy(self, pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> None:
        """Copy the second array of each pair into the first, of equal shape and dtype; several threads copy large ones."""
        large: list[tuple[Octets, Octets]] = []
        for target, source in pairs:
            whole = target.flags.c_contiguous and source.flags.c_contiguous
            if whole and target.nbytes >= _LEAST_SHARED_BYTES and _THREADS > 1:
                large.append((octets_of(target), octets_of(source)))
            else:
                np.copyto(target, source)
        if large:
            self._pool = self._pool or ThreadPoolExecutor(_THREADS - 1, thread_name_prefix="holdfast-copy")
            own, *others = equal_shares(large, _THREADS)
            begun = [self._pool.submit(_copy_all, share) for share in others]
            _copy_all(own)
            for other in begun:
                other.result()


def rounded_up(count: int, multiple: int) -> int:
    """``count`` or the next multiple above it."""
    return -(-count // multiple) * multiple


def octets_of(array: npt.NDArray[Any]) -> Octets:
    """The bytes of an array in C order, without a copy if it is stored in that order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def equal_shares(pairs: Sequence[tuple[Octets, Octets]], count: int) -> list[list[tuple[Octets, Octets]]]:
    """At most ``count`` shares of about equal size in bytes: all pairs end to end, cut only where a share ends.

    This keeps every copy as long as possible: a copy of more than about 40 MiB in one call (glibc's
    non_temporal_threshold) bypasses the caches and takes two thirds of the time.
    """
    each = rounded_up(-(-sum(to.nbytes for to, _ in pairs) // count), PAGE_BYTES)
    shares: list[list[tuple[Octets, Octets]]] = [[]]
    room = each
    for to, taken in pairs:
        start = 0
        while start < to.nbytes:
            if not room:
                shares.append([])
                room = each
            end = min(start + room, to.nbytes)
            shares[-1].append((to[start:end], taken[start:end]))
            room -= end - start
            start = end
    return shares


def _copy_all(pairs: Sequence[tuple[Octets, Octets]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def _mapped(nbytes: int) -> Octets:
    memory = mmap.mmap(-1, max(nbytes, PAGE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # systems without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    # Faults in every page, as madvise would; but Python's madvise call blocks all other threads.
    whole[::PAGE_BYTES] = 0
    return whole
