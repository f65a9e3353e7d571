"""Arrays in an OCDBT store (zarr 2, uncompressed, row-major) and the chunks that make up any part of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from holdfast.store.format.ocdbt.decode import NotUnderstoodError, Value

Box = tuple[tuple[int, int], ...]
"""(start, stop) along every axis; stop is exclusive."""
_REQUIRED: Final = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C", "dimension_separator": "."}


@dataclass(frozen=True)
class StoredChunk:
    """One chunk: its box in the array, beyond which an edge chunk may extend, and its bytes or where they are stored."""

    box: Box
    value: Value


@dataclass(frozen=True)
class StoredArray:
    """One array: its shape, dtype and grid of chunks of equal shape."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    index: Mapping[str, Value]

    def chunks(self, box: Box) -> Iterator[StoredChunk]:
        """The chunks that overlap ``box``. Raises NotUnderstoodError if one is absent or not of the length of its shape."""
        grids = [range(a // c, -(-b // c)) for (a, b), c in zip(box, self.chunk_shape, strict=True)]
        expected = math.prod(self.chunk_shape) * self.dtype.itemsize
        for place in itertools.product(*grids):
            key = _prefix(self.name) + (".".join(map(str, place)) or "0")
            value = self.index.get(key)
            if value is None:
                raise NotUnderstoodError(f"{key}: found no chunk, allowed: one of {expected} bytes")
            length = len(value) if isinstance(value, bytes) else value.length
            if length != expected:
                raise NotUnderstoodError(f"{key}: found {length} bytes, allowed: {expected}")
            yield StoredChunk(tuple((i * c, (i + 1) * c) for i, c in zip(place, self.chunk_shape, strict=True)), value)


def stored_array(index: Mapping[str, Value], name: str) -> StoredArray:
    """The array of a leaf, by stored name. Raises NotUnderstoodError if it is absent or of another layout."""
    found = index.get(f"{_prefix(name)}.zarray")
    if not isinstance(found, bytes):
        raise NotUnderstoodError(f"{name}: found no .zarray entry, allowed: an array of zarr 2")
    try:
        metadata = json.loads(found)
        shape, chunks = tuple(map(int, metadata["shape"])), tuple(map(int, metadata["chunks"]))
        dtype: np.dtype[Any] = jnp.dtype(metadata["dtype"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotUnderstoodError(f"{name}: {error!r}") from None
    for field, allowed in _REQUIRED.items():
        if metadata.get(field) != allowed:
            raise NotUnderstoodError(f"{name}: {field}: found {metadata.get(field)!r}, allowed: {allowed!r}")
    if len(shape) != len(chunks) or any(c < 1 for c in chunks) or not dtype.isnative:
        raise NotUnderstoodError(
            f"{name}: found shape {shape}, chunks {chunks}, dtype {dtype}, allowed: as many axes in chunks of 1 or more, native byte order"
        )
    return StoredArray(name, shape, dtype, chunks, index)


def _prefix(name: str) -> str:
    """The key prefix of a leaf; a state that is a single array has no name."""
    return f"{name}/" if name else ""
