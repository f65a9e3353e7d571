"""A copied state that becomes a tree of arrays again, for Orbax's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from holdfast.state.structure import PyTree, is_key
from holdfast.store.write.arena import ALIGNMENT_BYTES, Arena, rounded_up
from holdfast.store.write.host_copies import copy_to_host, digests_of, on_cpu
from holdfast.store.write.layout import replicated_over_processes

_Array = npt.NDArray[Any]


@dataclass
class _Slot:
    """An array and its copy."""

    source: _Array
    host: _Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class _Placed:
    """A JAX array whose shards were copied into host memory.

    It becomes an array again later, off the caller's thread, because that takes several times as long as copying a small
    shard.
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
        """Build the typed keys. This runs a computation, which all ranks must start in the same order."""
        data = self.data.assemble() if isinstance(self.data, _Placed) else self.data
        keys: jax.Array = jax.random.wrap_key_data(data, impl=self.impl)
        return keys


@dataclass(frozen=True)
class TreeCopy:
    """A copied state; ``state`` builds its arrays.

    ``local`` holds, by path, the leaves that every rank has for itself and that must be equal on all ranks. With several
    processes these are numpy arrays, Python numbers, and JAX arrays on this process's devices alone, such as an optimizer's
    step counter. ``state`` returns the latter as arrays replicated over the processes.
    """

    copies: tuple[Any, ...]
    treedef: Any
    local: Mapping[str, Any]
    bytes: int
    """How many bytes were copied; replicas count once."""

    def state(self) -> PyTree:
        """The tree of real arrays, sharing the snapshot's memory."""
        leaves = [copy.assemble() if isinstance(copy, _Placed) else copy for copy in self.copies]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def local_digests(self) -> dict[str, str]:
        """xxh3-64 of each local leaf's bytes, to compare between ranks."""
        return digests_of(self.local)


def copy_tree(state: PyTree, arena: Arena) -> TreeCopy:
    """Copy a state of any leaves that Orbax can write; arrays on CPU go into the arena's memory."""
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
        return _placed_on_cpu(leaf, slots) if on_cpu(leaf) else copy_to_host(leaf)
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
        slot.source = slot.host  # drops the reference to the state


def _settled(copy: Any) -> Any:
    if isinstance(copy, _PlacedKeys):
        return copy.assemble()  # now, not in the background, so that all ranks keep one order
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
