"""A copy of the training state that no later step can change, taken on the caller's thread.

On CPU every shard is copied once, into memory that is kept and reused from save to save. On accelerators shards go to
pinned host memory. There are two kinds: an ``Image`` is laid out as the file that this process writes; a ``TreeCopy`` is
a tree of arrays again, for Orbax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
import xxhash

from holdfast.state.structure import PyTree, is_key
from holdfast.store.write.arena import ALIGNMENT_BYTES, Arena, Octets, rounded_up
from holdfast.store.write.direct_io import blocks_of, gathered_blocks
from holdfast.store.write.layout import StateLayout, data_of, replicated_over_processes
from holdfast.store.write.preparation import Prepared

__all__ = ["Arena", "Image", "Snapshot", "TreeCopy", "take"]

_PINNED: Final = "pinned_host"
_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Image:
    """A state laid out as the file that this process writes.

    ``parts``: offsets and arrays, in the order of the file. ``memory``: the file as it will be, where all parts lie in it.
    """

    layout: StateLayout
    parts: tuple[tuple[int, Any], ...]
    memory: Octets | None
    local: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """What was copied."""
        return sum(piece.nbytes for piece in self.layout.pieces)

    def blocks(self) -> Iterator[Octets]:
        """The content of the file, in whole pages."""
        if self.memory is not None:
            return blocks_of(self.memory, self.layout.file_bytes)
        return gathered_blocks(self.parts, self.layout.file_bytes)

    def local_digests(self) -> dict[str, str]:
        """As ``TreeCopy.local_digests``."""
        return _digests(self.local)


@dataclass(frozen=True)
class TreeCopy:
    """A copied state, whose arrays ``state`` puts together.

    ``local`` holds, by path, the leaves that every rank has for itself and that must be equal. With several processes
    those are numpy arrays, Python numbers and jax arrays on this process's devices alone (an optimizer's step counter,
    say). The latter appear in the state as arrays replicated over the processes.
    """

    copies: tuple[Any, ...]
    treedef: Any
    local: Mapping[str, Any]
    bytes: int
    """What was copied, replicas counted once."""

    def state(self) -> PyTree:
        """The tree of real arrays, sharing the snapshot's memory."""
        leaves = [copy.assemble() if isinstance(copy, _Placed) else copy for copy in self.copies]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def local_digests(self) -> dict[str, str]:
        """xxh3-64 of each local leaf's bytes, to compare between ranks."""
        return _digests(self.local)


Snapshot = Image | TreeCopy


def take(state: PyTree, prepared: Prepared, arena: Arena) -> Snapshot:
    """The same state with the same values, none of which shares memory with ``state``. Waits for pending results."""
    layout = prepared.layout
    return _take_tree(state, arena) if layout is None else _take_image(state, prepared, layout, arena)


def memory_bytes(state: PyTree, prepared: Prepared) -> int:
    """What ``take`` will ask the arena for, as far as that is known before; arrays of accelerators need none."""
    layout = prepared.layout
    if layout is None or not _lies_on_cpu(jax.tree_util.tree_leaves(state), prepared):
        return 0
    return rounded_up(layout.memory_bytes, ALIGNMENT_BYTES)


def on_cpu(array: jax.Array) -> bool:
    """Whether it lies in memory that numpy can look at."""
    device: Any = next(iter(array.sharding.device_set))
    return bool(device.platform == "cpu")


# An image.


def _take_image(state: PyTree, prepared: Prepared, layout: StateLayout, arena: Arena) -> Image:
    leaves = jax.tree_util.tree_leaves(state)
    for number in prepared.keys:
        leaves[number] = data_of(leaves[number])
    if _lies_on_cpu(leaves, prepared):
        memory = arena.hold(rounded_up(layout.memory_bytes, ALIGNMENT_BYTES))
        views = prepared.views(memory)
        arena.copy([(view, _shard(leaves, piece)) for view, piece in zip(views, layout.pieces, strict=True)])
        arrays: Sequence[Any] = views
        image: Octets | None = memory
    else:
        arrays, image = _fetched(leaves, layout), None
    parts = [(piece.offset, array) for piece, array in zip(layout.pieces, arrays, strict=True)]
    written = tuple(part for part in parts if part[0] < layout.file_bytes)
    return Image(layout, written, image, prepared.local_of(arrays))


def _lies_on_cpu(leaves: Sequence[Any], prepared: Prepared) -> bool:
    return all(on_cpu(leaves[number]) for number in prepared.one_per_platform)


def _shard(leaves: Sequence[Any], piece: Any) -> _Array:
    leaf = leaves[piece.leaf]
    return np.asarray(leaf if piece.shard is None else leaf.addressable_data(piece.shard))


def _fetched(leaves: Sequence[Any], layout: StateLayout) -> list[Any]:
    """The pieces in pinned host memory, or copied if they are on the host."""
    hosted: dict[int, jax.Array] = {}
    for piece in layout.pieces:
        leaf = leaves[piece.leaf]
        if isinstance(leaf, jax.Array) and piece.leaf not in hosted:
            hosted[piece.leaf] = _copy_to_host(leaf)
    for array in hosted.values():
        array.block_until_ready()
    found: list[Any] = []
    for piece in layout.pieces:
        if piece.leaf in hosted:
            found.append(hosted[piece.leaf].addressable_data(piece.shard or 0))
        else:
            found.append(np.array(leaves[piece.leaf]))
    return found


# A tree.


@dataclass
class _Slot:
    """An array and its copy."""

    source: _Array
    host: _Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class _Placed:
    """A jax array whose shards were copied into host memory. Made an array again later, off the caller's thread: that
    takes several times longer than copying a small shard.
    """

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    shards: tuple[tuple[_Slot, jax.Device], ...]

    def assemble(self) -> jax.Array:
        """The array, without another copy."""
        hosts, devices = [slot.host for slot, _ in self.shards], [device for _, device in self.shards]
        parts = jax.device_put(hosts, devices, may_alias=True)
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, parts, dtype=hosts[0].dtype)


@dataclass(frozen=True)
class _PlacedKeys:
    data: Any
    impl: Any

    def assemble(self) -> jax.Array:
        """Typed keys. Runs a computation, which all ranks must start in the same order."""
        data = self.data.assemble() if isinstance(self.data, _Placed) else self.data
        keys: jax.Array = jax.random.wrap_key_data(data, impl=self.impl)
        return keys


def _take_tree(state: PyTree, arena: Arena) -> TreeCopy:
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    slots: list[_Slot] = []
    placed = [_placed(leaf, slots) for _, leaf in leaves]
    _fill(slots, arena)
    copies = [_settled(copy) for copy in placed]
    local = {}
    if jax.process_count() > 1:
        pairs = zip(leaves, copies, strict=True)
        local = {jax.tree_util.keystr(path): _host_value(copy) for (path, leaf), copy in pairs if _is_local(leaf)}
    for copy in copies:
        if isinstance(copy, jax.Array) and not on_cpu(copy):
            copy.block_until_ready()
    return TreeCopy(tuple(copies), treedef, local, sum(_copied_bytes(copy) for copy in copies))


def _placed(leaf: Any, slots: list[_Slot]) -> Any:
    if is_key(leaf):
        return _PlacedKeys(_placed(jax.random.key_data(leaf), slots), jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        if jax.process_count() > 1 and leaf.is_fully_addressable:
            here = jax.process_index()
            sharding = replicated_over_processes()
            devices: Any = sharding.device_set
            first = next(device for device in devices if device.process_index == here)
            return _Placed(leaf.shape, sharding, ((_new_slot(np.asarray(leaf), slots), first),))
        return _placed_on_cpu(leaf, slots) if on_cpu(leaf) else _copy_to_host(leaf)
    return _new_slot(leaf, slots) if isinstance(leaf, np.ndarray) else leaf


def _placed_on_cpu(array: jax.Array, slots: list[_Slot]) -> _Placed:
    found: dict[str, _Slot] = {}
    shards = []
    for shard in array.addressable_shards:
        where = str(shard.index)
        if where not in found:
            found[where] = _new_slot(np.asarray(shard.data), slots)
        shards.append((found[where], shard.device))
    return _Placed(array.shape, array.sharding, tuple(shards))


def _new_slot(source: _Array, slots: list[_Slot]) -> _Slot:
    slots.append(_Slot(source))
    return slots[-1]


def _fill(slots: Sequence[_Slot], arena: Arena) -> None:
    offset = 0
    offsets = []
    for slot in slots:
        offsets.append(offset)
        offset += rounded_up(slot.source.nbytes, ALIGNMENT_BYTES)
    memory = arena.hold(offset)
    for slot, start in zip(slots, offsets, strict=True):
        octets = memory[start : start + slot.source.nbytes]
        slot.host = octets.view(slot.source.dtype).reshape(slot.source.shape)
    arena.copy([(slot.host, slot.source) for slot in slots])
    for slot in slots:
        slot.source = slot.host  # lets go of the state


def _settled(copy: Any) -> Any:
    if isinstance(copy, _PlacedKeys):
        return copy.assemble()  # here, not in the background: the ranks' order
    return copy.host if isinstance(copy, _Slot) else copy


def _copied_bytes(copy: Any) -> int:
    if isinstance(copy, _Placed):
        return sum({slot.host.ctypes.data: slot.host.nbytes for slot, _ in copy.shards}.values())
    if is_key(copy):
        copy = jax.random.key_data(copy)
    if isinstance(copy, jax.Array):
        return sum({str(s.index): s.data.nbytes for s in copy.addressable_shards}.values())
    return int(getattr(copy, "nbytes", 8))


def _is_local(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _host_value(copy: Any) -> Any:
    if isinstance(copy, _Placed):
        return copy.shards[0][0].host
    if is_key(copy):
        copy = jax.random.key_data(copy)
    return copy.addressable_data(0) if isinstance(copy, jax.Array) else copy


# Both.


def _copy_to_host(array: jax.Array) -> jax.Array:
    copy: jax.Array = jax.device_put(array, array.sharding.with_memory_kind(_PINNED))
    return copy


def _digests(local: Mapping[str, Any]) -> dict[str, str]:
    return {path: xxhash.xxh3_64_hexdigest(np.asarray(leaf).tobytes()) for path, leaf in local.items()}
