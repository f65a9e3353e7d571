"""A copy of the training state that no later step can change, taken on the caller's thread.

On CPU each shard is copied once into memory that is kept and reused from save to save (first-touch page faults cost
ten times the copy) and becomes zero-copy arrays in the background. On accelerators shards go to pinned host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
import xxhash

from holdfast.store.structure import PyTree, is_key

_ALIGNMENT_BYTES: Final = 64
"""XLA's CPU client aliases host memory that is aligned so, and copies any other."""
_PINNED: Final = "pinned_host"


class Arena:
    """Host memory for one snapshot at a time; grows to the size of one state and stays there."""

    def __init__(self) -> None:
        self._blocks: dict[str, npt.NDArray[np.uint8]] = {}

    def place(self, slot: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy of ``array`` in the slot's memory, which whatever was placed there before must not need any more."""
        block = self._blocks.get(slot)
        if block is None or block.nbytes != array.nbytes:
            block = self._blocks[slot] = _aligned(array.nbytes)
        copy = block.view(array.dtype).reshape(array.shape) if array.size else np.empty_like(array)
        np.copyto(copy, array)
        return copy

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(block.nbytes for block in self._blocks.values())


@dataclass(frozen=True)
class _Placed:
    """A jax array whose shards were copied into host memory. Made an array again later, off the caller's thread: that
    takes several times longer than copying a small shard.
    """

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    shards: tuple[tuple[npt.NDArray[Any], jax.Device], ...]

    def assemble(self) -> jax.Array:
        """The array, without another copy."""
        hosts, devices = [host for host, _ in self.shards], [device for _, device in self.shards]
        parts = jax.device_put(hosts, devices, may_alias=True)
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, parts, dtype=hosts[0].dtype)


@dataclass(frozen=True)
class Snapshot:
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
        return {path: xxhash.xxh3_64_hexdigest(np.asarray(leaf).tobytes()) for path, leaf in self.local.items()}


def take(state: PyTree, arena: Arena) -> Snapshot:
    """The same tree with the same values, none of which shares memory with ``state``. Waits for pending results.

    Leaves stay what they are: jax arrays with their shardings, typed keys, numpy arrays, Python numbers.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    local: dict[str, Any] = {}
    copies = []
    for number, (path, leaf) in enumerate(leaves):
        copies.append(_copy(f"{number}", leaf, arena))
        if jax.process_count() > 1 and _is_local(leaf):
            local[jax.tree_util.keystr(path)] = _host_value(copies[-1])
    for copy in copies:
        if isinstance(copy, jax.Array) and not _on_cpu(copy):
            copy.block_until_ready()
    return Snapshot(tuple(copies), treedef, local, sum(_copied_bytes(copy) for copy in copies))


def _copied_bytes(copy: Any) -> int:
    if isinstance(copy, _Placed):
        return sum({host.ctypes.data: host.nbytes for host, _ in copy.shards}.values())
    if is_key(copy):
        copy = jax.random.key_data(copy)
    if isinstance(copy, jax.Array):
        return sum({str(s.index): s.data.nbytes for s in copy.addressable_shards}.values())
    return int(getattr(copy, "nbytes", 8))


def _copy(slot: str, leaf: Any, arena: Arena) -> Any:
    if is_key(leaf):
        data = _copy(slot, jax.random.key_data(leaf), arena)
        # Wrapping runs a computation, which all ranks must start in the same order: here, not in the background.
        data = data.assemble() if isinstance(data, _Placed) else data
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        if jax.process_count() > 1 and leaf.is_fully_addressable:
            return _replicated(arena.place(slot, np.asarray(leaf)))
        return _copy_on_cpu(slot, leaf, arena) if _on_cpu(leaf) else _copy_to_host(leaf)
    if isinstance(leaf, np.ndarray):
        return arena.place(slot, leaf)
    return leaf


def _copy_on_cpu(slot: str, array: jax.Array, arena: Arena) -> _Placed:
    placed: dict[str, npt.NDArray[Any]] = {}
    shards = []
    for number, shard in enumerate(array.addressable_shards):
        where = str(shard.index)
        if where not in placed:
            placed[where] = arena.place(f"{slot}/{number}", np.asarray(shard.data))
        shards.append((placed[where], shard.device))
    return _Placed(array.shape, array.sharding, tuple(shards))


def _replicated(value: npt.NDArray[Any]) -> _Placed:
    """The value of this process as its replica of a global array: what storage formats for many processes can take."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = jax.sharding.Mesh(np.array([firsts[index] for index in sorted(firsts)]), ("process",))
    everywhere: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(mesh, everywhere())
    return _Placed(value.shape, sharding, ((value, firsts[jax.process_index()]),))


def _is_local(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _host_value(copy: Any) -> Any:
    if isinstance(copy, _Placed):
        return copy.shards[0][0]
    if is_key(copy):
        copy = jax.random.key_data(copy)
    return copy.addressable_data(0) if isinstance(copy, jax.Array) else copy


def _copy_to_host(array: jax.Array) -> jax.Array:
    copy: jax.Array = jax.device_put(array, array.sharding.with_memory_kind(_PINNED))
    return copy


def _on_cpu(array: jax.Array) -> bool:
    device: Any = next(iter(array.sharding.device_set))
    return bool(device.platform == "cpu")


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    raw = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[start : start + nbytes]
