"""Which process writes which shard of a state, and where: one file of raw chunks per process.

Every process computes the same layout of all files from names, shapes, dtypes and shardings, which are the same on all of
them. Process 0 can therefore write the index over all files alone, and a digest shows whether all processes agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np

from holdfast.state.structure import PyTree, is_key
from holdfast.store.write.arena import ALIGNMENT_BYTES, rounded_up

_EXTENDED: Final = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
_DTYPES: Final[Mapping[np.dtype[Any], str]] = {
    np.dtype(name): np.dtype(name).str
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {np.dtype(getattr(ml_dtypes, name)): name for name in _EXTENDED}
"""How TensorStore's zarr driver spells the dtypes whose elements are whole bytes."""


class UnwritableError(Exception):
    """Raw chunks cannot hold this state, so Orbax writes it; the text names the leaf and the reason."""


@dataclass(frozen=True)
class StoredLeaf:
    """A leaf as it is stored. ``shape`` and ``chunk_shape`` count elements; ``dtype`` is zarr's name of it.

    ``value_type`` is Orbax's name of its type in the program, ``key_impl`` the implementation of typed PRNG keys.
    """

    path: str
    name: str
    value_type: str
    shape: tuple[int, ...]
    dtype: str
    chunk_shape: tuple[int, ...]
    numpy_dtype: np.dtype[Any]
    sharding: jax.sharding.Sharding | None = None
    key_impl: str = ""


@dataclass(frozen=True)
class ChunkPlacement:
    """One value in the index: ``nbytes`` at ``offset`` of the file of ``process``."""

    leaf: int
    position: tuple[int, ...]
    process: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class ShardPlacement:
    """What this process copies for a save: its own shard number ``shard`` of a leaf, or the whole leaf if None.

    ``nbytes`` bytes at ``offset`` of this process's memory, which up to ``StateLayout.file_bytes`` is its file.
    """

    leaf: int
    shard: int | None
    offset: int
    nbytes: int


@dataclass(frozen=True)
class StateLayout:
    """Where everything is stored. ``leaves`` in the order of the flattened tree; None for arrays without elements.

    ``placements`` below ``file_bytes`` make up this process's file. Those beyond are leaves that each process has for
    itself: process 0 writes them, and the others copy them only to compare digests.
    """

    leaves: tuple[StoredLeaf | None, ...]
    chunks: tuple[ChunkPlacement, ...]
    placements: tuple[ShardPlacement, ...]
    file_bytes: int
    memory_bytes: int
    local: tuple[int, ...]
    """Numbers of the leaves that every process has for itself; empty with one process."""

    def stored(self, number: int) -> StoredLeaf:
        """The leaf of a chunk or placement. Raises KeyError if the leaf has no elements."""
        found = self.leaves[number]
        if found is None:
            raise KeyError(number)
        return found


def layout_of(state: PyTree) -> StateLayout:
    """The layout of a state of real arrays.

    Raises:
        UnwritableError: a leaf is of a dtype or kind that raw chunks cannot hold, or nothing has elements.
    """
    return _Builder().build(state)


def data_of(leaf: Any) -> Any:
    """What is stored of a leaf: the key data of typed keys, a numpy array for numpy and Python numbers, otherwise the leaf."""
    if is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def replicated_over_processes() -> jax.sharding.NamedSharding:
    """A sharding over one device of each process: it makes one global array of a leaf that each process has for itself."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = jax.sharding.Mesh(np.array([firsts[index] for index in sorted(firsts)]), ("process",))
    everywhere: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(mesh, everywhere())


class _Builder:
    def __init__(self) -> None:
        self._process, self._process_count = jax.process_index(), jax.process_count()
        self._ends = [0] * self._process_count
        self._chunks: list[ChunkPlacement] = []
        self._placements: list[ShardPlacement] = []
        self._unwritten: list[tuple[int, int]] = []  # (leaf, bytes): copied by this process, written by process 0
        self._local: list[int] = []
        self._split: dict[Any, dict[tuple[int, ...], list[int]]] = {}

    def build(self, state: PyTree) -> StateLayout:
        leaves, _ = jax.tree_util.tree_flatten_with_path(state)
        stored = [self._add(number, path, leaf) for number, (path, leaf) in enumerate(leaves)]
        if not self._chunks:
            raise UnwritableError("no leaf of the state has elements")
        end = self._ends[self._process]
        placements = list(self._placements)
        memory = rounded_up(end, ALIGNMENT_BYTES)
        for leaf, nbytes in self._unwritten:
            placements.append(ShardPlacement(leaf, None, memory, nbytes))
            memory += rounded_up(nbytes, ALIGNMENT_BYTES)
        return StateLayout(tuple(stored), tuple(self._chunks), tuple(placements), end, memory, tuple(self._local))

    def _add(self, number: int, path: Sequence[Any], leaf: Any) -> StoredLeaf | None:
        where = jax.tree_util.keystr(tuple(path))
        if getattr(leaf, "size", 1) == 0:
            return None
        data = data_of(leaf)
        code = _DTYPES.get(np.dtype(data.dtype))
        if code is None:
            raise UnwritableError(f"{where}: dtype {data.dtype}")
        name = ".".join(key_name(key, where) for key in path)
        if name.endswith("/"):  # TensorStore, which Orbax reads with, takes it for the end of a folder's name
            raise UnwritableError(f"{where}: a name that ends with '/'")
        if isinstance(data, jax.Array):
            impl = str(jax.random.key_impl(leaf)) if is_key(leaf) else ""
            stored = StoredLeaf(where, name, "jax.Array", data.shape, code, data.shape, data.dtype, data.sharding, impl)
            return self._add_array(number, stored, data)
        # Orbax reads a numpy scalar back only if Python has a number type for it.
        value_type = "np.ndarray" if isinstance(leaf, np.ndarray) or not _is_plain(data.dtype) else "scalar"
        self._add_local(number, data)
        return StoredLeaf(where, name, value_type, data.shape, code, data.shape, data.dtype)

    def _add_array(self, number: int, leaf: StoredLeaf, data: jax.Array) -> StoredLeaf:
        if self._process_count > 1 and data.is_fully_addressable:
            self._add_local(number, data)
            return replace(leaf, sharding=replicated_over_processes())
        return replace(leaf, chunk_shape=self._add_shards(number, leaf, data))

    def _add_local(self, number: int, data: Any) -> None:
        """Add a leaf that process 0 writes."""
        if self._process_count > 1:
            self._local.append(number)
        offset = self._place(number, (0,) * data.ndim, 0, data.nbytes)
        if self._process == 0:
            self._placements.append(ShardPlacement(number, None, offset, data.nbytes))
        else:
            self._unwritten.append((number, data.nbytes))

    def _add_shards(self, number: int, leaf: StoredLeaf, data: jax.Array) -> tuple[int, ...]:
        try:
            chunk_shape = tuple(data.sharding.shard_shape(data.shape))
        except ValueError as error:
            raise UnwritableError(f"{leaf.path}: its shards differ in shape ({error})") from None
        nbytes = int(np.prod(chunk_shape, dtype=np.int64)) * data.dtype.itemsize
        own: Mapping[tuple[int, ...], int | None] = {}
        alone = data.is_fully_addressable and len(data.sharding.device_set) == 1
        for position, holders in self._positions(data, chunk_shape).items():
            process = min(holders, key=lambda holder: (self._ends[holder], holder))
            offset = self._place(number, position, process, nbytes)
            if process == self._process:
                own = own or ({position: None} if alone else _own_shards(data, chunk_shape))
                self._placements.append(ShardPlacement(number, own[position], offset, nbytes))
        return chunk_shape

    def _positions(self, data: jax.Array, chunk_shape: tuple[int, ...]) -> dict[tuple[int, ...], list[int]]:
        """Which processes hold a copy of each chunk, in the order of the chunks."""
        split = (data.sharding, data.shape)
        if split not in self._split:
            found: dict[tuple[int, ...], set[int]] = {}
            places: Any = data.sharding.devices_indices_map(data.shape)
            for device, index in places.items():
                found.setdefault(_position(index, chunk_shape), set()).add(device.process_index)
            self._split[split] = {position: sorted(found[position]) for position in sorted(found)}
        return self._split[split]

    def _place(self, leaf: int, position: tuple[int, ...], process: int, nbytes: int) -> int:
        offset = rounded_up(self._ends[process], ALIGNMENT_BYTES)
        self._ends[process] = offset + nbytes
        self._chunks.append(ChunkPlacement(leaf, position, process, offset, nbytes))
        return offset


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.isbuiltin == 1 and dtype.kind in "biuf"


def key_name(key: Any, where: str) -> str:
    """One part of a leaf's stored name, as Orbax spells it. Raises UnwritableError for another type of key."""
    for attribute in ("idx", "key", "name"):
        if isinstance(key, _KEYS[attribute]):
            return str(getattr(key, attribute))
    raise UnwritableError(f"{where}: key {key!r} of type {type(key).__name__}")


_KEYS: Final = {
    "idx": (jax.tree_util.SequenceKey,),
    "key": (jax.tree_util.DictKey, jax.tree_util.FlattenedIndexKey),
    "name": (jax.tree_util.GetAttrKey,),
}


def _own_shards(data: jax.Array, chunk_shape: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for number, shard in enumerate(data.addressable_shards):
        found.setdefault(_position(shard.index, chunk_shape), number)
    return found


def _position(index: Sequence[slice], chunk_shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((part.start or 0) // size for part, size in zip(index, chunk_shape, strict=True))
