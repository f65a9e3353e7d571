"""Host memory that JAX can use in place."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES: Final = 64
"""XLA's CPU client uses host memory with this alignment in place, and copies any other."""
_MAPPED_BYTES: Final = 4 * 1024 * 1024


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array with undefined content. Each array has memory of its own, so one in use keeps no other's memory alive.

    Large arrays avoid huge pages, which numpy would request: a virtual machine that returns free memory to its host waits
    for every huge page, and a whole restore took up to three times as long.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _MAPPED_BYTES:
        raw: npt.NDArray[np.uint8] = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    else:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + nbytes].view(dtype).reshape(shape)
