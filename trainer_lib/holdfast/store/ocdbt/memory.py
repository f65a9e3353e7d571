"""Host memory that JAX can take over as it is."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES: Final = 64
"""XLA's CPU client aliases host memory that is aligned so, and copies any other."""
_HUGE_BYTES: Final = 2 * 1024 * 1024


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array with undefined content, which returns its memory to the system when its last user is gone.

    Large ones lie in huge pages where the kernel has some: touching memory for the first time costs more than reading
    a file into it, and a huge page is touched at once.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < 2 * _HUGE_BYTES:
        raw: npt.NDArray[np.uint8] = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
    else:
        memory = mmap.mmap(-1, nbytes + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        raw = np.frombuffer(memory, np.uint8)
        start = -raw.ctypes.data % _HUGE_BYTES
        whole = nbytes // _HUGE_BYTES * _HUGE_BYTES  # the rest in small pages: no more memory than asked for
        with contextlib.suppress(OSError, AttributeError):  # a kernel or system without them
            memory.madvise(mmap.MADV_HUGEPAGE, start, whole)
    return raw[start : start + nbytes].view(dtype).reshape(shape)
