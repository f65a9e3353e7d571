"""The chunks that Orbax wrote for one process, each with the elements that it was given for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from holdfast.state.structure import PyTree
from holdfast.store.format import orbax_records, regular
from holdfast.store.format.ocdbt.arrays import Box, stored_array
from holdfast.store.format.ocdbt.decode import NotUnderstoodError, Value
from holdfast.store.format.ocdbt.index import read_index
from holdfast.store.write.layout import data_of

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class WrittenChunk:
    """A chunk of leaf number ``leaf``: the elements to write, and the stored bytes or where they are stored."""

    leaf: int
    saved: _Array
    value: Value


def written_chunks(part: Path, array_metadata: Path, state: PyTree) -> Iterator[WrittenChunk]:
    """Every chunk in the folder of a process's part, in no particular order.

    Args:
        part: the folder ``ocdbt.process_<i>``.
        array_metadata: Orbax's file about the arrays that this process wrote.
        state: the state that Orbax was given.

    Raises:
        NotUnderstoodError: the index, or a chunk in it, does not belong to this state.
        OSError: storage does not answer.
        EOFError: a file is too short.
    """
    index = read_index(lambda path, offset, length: regular.read_range(part / path, offset, length))
    chunk_shapes = {record.name: record.chunk_shape for record in orbax_records.array_records(array_metadata)}
    chunks = _by_array(index)
    for number, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(state)[0]):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        local, written = dict(_local_arrays(leaf)), 0
        mine = chunks.get(name, {})
        shape = chunk_shapes.get(name) or (stored_array(index, name).chunk_shape if mine else ())
        for place, value in mine.items():
            saved = _cut(name, local, place, shape)
            length = len(value) if isinstance(value, bytes) else value.length
            if length != saved.nbytes:
                raise NotUnderstoodError(f"{name}: found {length} bytes at {place}, allowed: {saved.nbytes}")
            written += saved.size
            yield WrittenChunk(number, saved, value)
        expected = sum(array.size for array in local.values())
        if jax.process_count() == 1 and written != expected:  # with several processes, each writes only its share
            raise NotUnderstoodError(f"{name}: found {written} numbers, allowed: {expected}")


def _by_array(index: Mapping[str, Value]) -> dict[str, dict[tuple[int, ...], Value]]:
    """The chunks of each array, by their position in its grid."""
    found: dict[str, dict[tuple[int, ...], Value]] = {}
    for key, value in index.items():
        name, _, last = key.rpartition("/")
        place = last.split(".")
        if all(number.isdecimal() for number in place):
            found.setdefault(name, {})[tuple(map(int, place))] = value
    return found


def _local_arrays(leaf: Any) -> Iterator[tuple[Box, _Array]]:
    """This process's parts of a leaf, each with its box in the leaf."""
    if not isinstance(leaf, jax.Array):
        whole = np.asarray(leaf)
        yield tuple((0, size) for size in whole.shape), whole
        return
    for shard in leaf.addressable_shards:
        data = np.asarray(data_of(shard.data))
        starts = [part.start or 0 for part in shard.index[: leaf.ndim]] + [0] * (data.ndim - leaf.ndim)
        yield tuple((start, start + size) for start, size in zip(starts, data.shape, strict=True)), data


def _cut(name: str, local: Mapping[Box, _Array], place: tuple[int, ...], shape: tuple[int, ...]) -> _Array:
    place = place if shape else ()
    box = [(i * size, (i + 1) * size) for i, size in zip(place, shape, strict=True)]
    for around, array in local.items():
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(box, around, strict=True)):
            return array[tuple(slice(start - a, stop - a) for (start, stop), (a, _) in zip(box, around, strict=True))]
    raise NotUnderstoodError(
        f"{name}: found a chunk of {math.prod(shape)} numbers at {place}, allowed: this process's chunks"
    )
