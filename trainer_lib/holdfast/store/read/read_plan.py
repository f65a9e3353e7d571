"""Reading a state without TensorStore: which bytes of which file go where, and how they become arrays.

``holdfast.store.read.verified_read`` carries out the plan in the same pass that hashes the files, straight into the memory
that becomes the arrays. A layout that is not supported raises NotUnderstoodError before any byte of an array is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from holdfast.state import placing
from holdfast.state.structure import PyTree, is_key
from holdfast.store.format.ocdbt.arrays import Box, StoredArray, StoredChunk, stored_array
from holdfast.store.format.ocdbt.decode import Extent, NotUnderstoodError
from holdfast.store.format.ocdbt.index import ReadBytes, read_index
from holdfast.store.format.ocdbt.memory import aligned
from holdfast.store.read.hashing_reader import ReadSpan

_SLAB_BYTES: Final = 8 * 1024 * 1024
_KEY_NAMES: Final = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}

Host = npt.NDArray[Any]


@dataclass(frozen=True)
class _Leaf:
    """One leaf of the result. ``boxes``: host memory for each part of the array that this process needs."""

    requested: Any
    boxes: Mapping[Box, Host]
    stored: StoredArray

    def assemble(self) -> Any:
        requested = self.requested
        if isinstance(requested, jax.Array | jax.ShapeDtypeStruct):
            array = self._free() if placing.is_free(requested) else self._placed()
            return jax.random.wrap_key_data(array, impl=_key_name(requested)) if is_key(requested) else array
        [value] = self.boxes.values()
        if isinstance(requested, np.ndarray):
            return value
        return requested.dtype.type(value[()]) if isinstance(requested, np.generic) else type(requested)(value[()])

    def _free(self) -> jax.Array:
        [value] = self.boxes.values()
        return jnp.asarray(value)

    def _placed(self) -> jax.Array:
        sharding = placing.sharding_of(self.requested)
        places = _devices(sharding, self.requested.shape, self.stored.shape)
        hosts, devices = [self.boxes[box] for _, box in places], [device for device, _ in places]
        parts = jax.device_put(hosts, devices, may_alias=True)
        made: jax.Array = jax.make_array_from_single_device_arrays(
            self.stored.shape, sharding, parts, dtype=self.stored.dtype
        )
        return made


@dataclass
class ReadPlan:
    """What to read of each file, by path below the folder of the arrays. ``state`` builds the result after verification."""

    spans: dict[str, list[ReadSpan]] = field(default_factory=dict)
    parsed: list[tuple[bytes, memoryview]] = field(default_factory=list)
    """The bytes that the plan was made from, and the memory that receives the same bytes when they are hashed."""
    _build: Callable[[], PyTree] = field(default=lambda: None)

    def state(self) -> PyTree:
        """The state. Raises NotUnderstoodError if the index has changed since the plan was made."""
        if any(before != now for before, now in self.parsed):
            raise NotUnderstoodError("the index has changed since it was read first")
        return self._build()


def plan(read: ReadBytes, abstract: PyTree, *, without: Container[str] = ()) -> ReadPlan:
    """How to fill ``abstract`` with the values that ``orbax_io.load`` would return.

    Args:
        read: reads a range of a file below the folder of the arrays.
        abstract: a pytree with the shapes, dtypes and shardings to fill.
        without: paths of leaves that stay as they are in ``abstract``.

    Raises:
        NotUnderstoodError: the layout is not supported here, or the index is damaged.
        OSError: ``read`` raised it.
    """
    made = ReadPlan()
    index = read_index(_recording(read, made))
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract)
    leaves: list[_Leaf | None] = []
    for path, requested in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        skip = jax.tree_util.keystr(path) in without or placing.is_empty(requested)
        leaves.append(None if skip else _leaf(stored_array(index, name), requested))
    for leaf in leaves:
        if leaf is not None:
            _place(leaf, made.spans)
    for spans in made.spans.values():
        _order(spans)

    def build() -> PyTree:
        values = [
            _untouched(requested, path, without) if leaf is None else leaf.assemble()
            for leaf, (path, requested) in zip(leaves, paths, strict=True)
        ]
        return jax.tree_util.tree_unflatten(treedef, values)

    made._build = build  # noqa: SLF001  its own class
    return made


def _untouched(requested: Any, path: Any, without: Container[str]) -> Any:
    return requested if jax.tree_util.keystr(path) in without else placing.empty_like(requested)


def _recording(read: ReadBytes, made: ReadPlan) -> ReadBytes:
    """``read``, which also plans a second read of the same bytes: the pass that hashes them must find them unchanged."""

    def recorded(path: str, offset: int, length: int | None) -> bytes:
        data = read(path, offset, length)
        again = memoryview(bytearray(len(data)))
        made.spans.setdefault(path, []).append(ReadSpan(offset, len(data), lambda: again))
        made.parsed.append((data, again))
        return data

    return recorded


def _order(spans: list[ReadSpan]) -> None:
    spans.sort(key=lambda span: span.offset)
    for one, two in itertools.pairwise(spans):
        if one.stop > two.offset:
            raise NotUnderstoodError(f"offsets: found two values at byte {two.offset} of one file, allowed: one")


# Leaves.


def _leaf(stored: StoredArray, requested: Any) -> _Leaf:
    shape, dtype = tuple(np.shape(requested)), getattr(requested, "dtype", stored.dtype)
    if is_key(requested):
        _key_name(requested)
        fits = stored.dtype == np.uint32 and stored.shape[: len(shape)] == shape and len(stored.shape) == len(shape) + 1
    else:
        fits = stored.shape == shape and stored.dtype == dtype
    if not fits:
        found = f"{stored.dtype}{list(stored.shape)}"
        raise NotUnderstoodError(f"{stored.name}: found {found}, allowed: {dtype}{list(shape)}")
    return _Leaf(requested, {box: _memory(box, stored.dtype) for box in _boxes(stored, requested)}, stored)


def _memory(box: Box, dtype: np.dtype[Any]) -> Host:
    return aligned(tuple(stop - start for start, stop in box), dtype)


def _boxes(stored: StoredArray, requested: Any) -> list[Box]:
    """The parts of the array that this process needs, each once."""
    if isinstance(requested, jax.Array | jax.ShapeDtypeStruct) and not placing.is_free(requested):
        places = _devices(placing.sharding_of(requested), tuple(requested.shape), stored.shape)
        return list(dict.fromkeys(box for _, box in places))
    return [tuple((0, size) for size in stored.shape)]


def _devices(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], stored_shape: tuple[int, ...]
) -> list[tuple[jax.Device, Box]]:
    """This process's devices and the part of the array on each. The data of PRNG keys have one more axis than the keys."""
    if shape != stored_shape and not isinstance(
        sharding, jax.sharding.NamedSharding | jax.sharding.SingleDeviceSharding
    ):
        raise NotUnderstoodError(
            f"keys: found {type(sharding).__name__}, allowed: NamedSharding | SingleDeviceSharding"
        )
    places = sharding.addressable_devices_indices_map(stored_shape)
    kind, device = sharding.memory_kind, cast("Any", next(iter(places)))
    if kind is not None and kind != device.default_memory().kind:
        raise NotUnderstoodError(f"memory: found {kind}, allowed: {device.default_memory().kind}")
    return [(device, _box(place or (), stored_shape)) for device, place in places.items()]


def _box(place: Sequence[Any], shape: tuple[int, ...]) -> Box:
    full = [*place, *[slice(None)] * (len(shape) - len(place))]
    return tuple(part.indices(size)[:2] for part, size in zip(full, shape, strict=True))


def _key_name(requested: Any) -> str:
    name = str(requested.dtype)
    if name not in _KEY_NAMES:
        raise NotUnderstoodError(f"found {name}, allowed: {', '.join(_KEY_NAMES)}")
    return _KEY_NAMES[name]


# Placing bytes.

_Copy = tuple[Host, tuple[slice, ...], tuple[slice, ...]]
"""Target array, the part of it to fill, and the part of the chunk that fills it."""


def _place(leaf: _Leaf, spans: dict[str, list[ReadSpan]]) -> None:
    users: dict[Box, tuple[StoredChunk, list[_Copy]]] = {}
    for box, host in leaf.boxes.items():
        for chunk in leaf.stored.chunks(box):
            copy = (host, *_overlap(box, chunk.box, leaf.stored.shape))
            users.setdefault(chunk.box, (chunk, []))[1].append(copy)
    shape, dtype = leaf.stored.chunk_shape, leaf.stored.dtype
    for chunk, copies in users.values():
        if isinstance(chunk.value, bytes):
            source = np.frombuffer(chunk.value, dtype).reshape(shape)
            for host, there, here in copies:
                host[there] = source[here]
        else:
            found = list(_spans(chunk.value, copies, shape, dtype))
            spans.setdefault(chunk.value.path, []).extend(found)


def _overlap(box: Box, chunk: Box, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The intersection of box and chunk, as slices of each."""
    there, here = [], []
    for (start, stop), (first, last), size in zip(box, chunk, shape, strict=True):
        low, high = max(start, first), min(stop, last, size)
        there.append(slice(low - start, high - start))
        here.append(slice(low - first, high - first))
    return tuple(there), tuple(here)


def _spans(extent: Extent, copies: list[_Copy], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[ReadSpan]:
    """The spans of one chunk: read straight into place where the target is contiguous as well, otherwise in slabs."""
    direct = [_direct(extent, copy, shape, dtype) for copy in copies]
    if all(direct) and not _meet([span for span in direct if span]):
        yield from (span for span in direct if span)
    else:
        yield from _slabs(extent, copies, shape, dtype)


def _meet(spans: list[ReadSpan]) -> bool:
    ordered = sorted(spans, key=lambda span: span.offset)
    return any(one.stop > two.offset for one, two in itertools.pairwise(ordered))


def _direct(extent: Extent, copy: _Copy, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ReadSpan | None:
    host, there, here = copy
    place: Any = (*there, ...)  # the ellipsis keeps a view of an array without axes, where () alone would copy
    target = host[place]
    if not target.flags.c_contiguous or not _is_run(here, shape):
        return None
    start = sum(part.start * math.prod(shape[axis + 1 :]) for axis, part in enumerate(here))
    view = memoryview(cast("Any", target.reshape(-1).view(np.uint8)))
    return ReadSpan(extent.offset + start * dtype.itemsize, target.nbytes, lambda: view)


def _is_run(part: tuple[slice, ...], shape: tuple[int, ...]) -> bool:
    """Whether a part of an array is contiguous in memory: leading single indices, then one range, then whole axes."""
    sizes = [p.stop - p.start for p in part]
    first = next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
    return sizes[first + 1 :] == list(shape[first + 1 :])


def _slabs(extent: Extent, copies: list[_Copy], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[ReadSpan]:
    """Some rows of the chunk at a time, read into temporary memory and copied from there."""
    axis = next((axis for axis, size in enumerate(shape) if size > 1), 0)
    row_bytes = math.prod(shape[axis + 1 :]) * dtype.itemsize
    rows = max(1, _SLAB_BYTES // row_bytes)
    first = min(here[axis].start for _, _, here in copies)
    last = max(here[axis].stop for _, _, here in copies)
    for start in range(first, last, rows):
        stop = min(start + rows, last)
        slab_shape = (*shape[:axis], stop - start, *shape[axis + 1 :])
        yield _slab(extent.offset + start * row_bytes, copies, slab_shape, dtype, axis=axis, start=start)


def _slab(
    offset: int, copies: list[_Copy], shape: tuple[int, ...], dtype: np.dtype[Any], *, axis: int, start: int
) -> ReadSpan:
    def make() -> memoryview:
        return memoryview(bytearray(math.prod(shape) * dtype.itemsize))

    def finish(memory: memoryview) -> None:
        source = np.frombuffer(memory, dtype).reshape(shape)
        for host, there, here in copies:
            low, high = max(here[axis].start, start), min(here[axis].stop, start + shape[axis])
            if low >= high:
                continue
            shift = there[axis].start - here[axis].start
            target, part = list(there), list(here)
            target[axis], part[axis] = slice(low + shift, high + shift), slice(low - start, high - start)
            host[tuple(target)] = source[tuple(part)]

    return ReadSpan(offset, math.prod(shape) * dtype.itemsize, make, finish)


__all__ = ["NotUnderstoodError", "ReadPlan", "plan"]
