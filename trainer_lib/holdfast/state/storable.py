"""Which values a checkpoint can hold. What it cannot is refused at the call that has it, not by each save in the background."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

DTYPES: Final = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("int2", "int4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
"""Names of the dtypes that the releases of Orbax that Holdfast works with write and read."""
_FIRST_INT, _LAST_INT = -(2**63), 2**64 - 1
_PLAIN_ARRAYS: Final = (np.ndarray, np.memmap)


def refusal(value: Any) -> str:
    """Why ``value``, an array or a Python number, cannot be stored; "" if it can."""
    if isinstance(value, np.ndarray) and type(value) not in _PLAIN_ARRAYS:
        return f"numpy {type(value).__name__}, of which a checkpoint would hold the numbers alone: store plain arrays"
    if isinstance(value, int) and not _FIRST_INT <= value <= _LAST_INT:
        return f"an int of {value.bit_length()} bits, allowed: -2**63 to 2**64 - 1"
    dtype = getattr(value, "dtype", None)
    if dtype is not None and 0 not in value.shape and dtype.name not in DTYPES:
        return f"dtype {dtype.name}, which Orbax does not store, allowed: {', '.join(sorted(DTYPES))}"
    return ""
