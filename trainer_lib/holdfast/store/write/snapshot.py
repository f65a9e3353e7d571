"""A copy of the training state that no later step can change, taken on the caller's thread.

On CPU every shard is copied once, into memory that is kept and reused from save to save. On accelerators shards are copied
to pinned host memory. There are two kinds: an ``Image`` is laid out as the file that this process writes; a ``TreeCopy`` is
a tree of arrays again, for Orbax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from holdfast.state.structure import PyTree
from holdfast.store.write.arena import ALIGNMENT_BYTES, Arena, Octets, rounded_up
from holdfast.store.write.direct_io import blocks_of, gathered_blocks
from holdfast.store.write.host_copies import copy_to_host, digests_of, on_cpu
from holdfast.store.write.layout import ShardPlacement, StateLayout, data_of
from holdfast.store.write.save_preparation import Prepared
from holdfast.store.write.tree_copy import TreeCopy, copy_tree

__all__ = ["Arena", "Image", "Snapshot", "TreeCopy", "take"]

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Image:
    """A state laid out as the file that this process writes.

    ``parts``: offsets in bytes, and arrays, in the order of the file. ``memory``: the whole file, if all parts are in one
    block of memory. ``local``: by path, the leaves that every rank has for itself.
    """

    layout: StateLayout
    parts: tuple[tuple[int, Any], ...]
    memory: Octets | None
    local: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """How many bytes were copied."""
        return sum(placement.nbytes for placement in self.layout.placements)

    def blocks(self) -> Iterator[Octets]:
        """The content of the file, in whole pages."""
        if self.memory is not None:
            return blocks_of(self.memory, self.layout.file_bytes)
        return gathered_blocks(self.parts, self.layout.file_bytes)

    def local_digests(self) -> dict[str, str]:
        """As ``TreeCopy.local_digests``."""
        return digests_of(self.local)


Snapshot = Image | TreeCopy


def take(state: PyTree, prepared: Prepared, arena: Arena) -> Snapshot:
    """Copy ``state``, after waiting for results that are still being computed.

    Args:
        state: a pytree of real arrays.
        prepared: what ``Preparation.of(state)`` returned.
        arena: memory for copies on CPU; holds one snapshot at a time.

    Returns:
        The same values; none shares memory with ``state``.
    """
    layout = prepared.layout
    return copy_tree(state, arena) if layout is None else _take_image(state, prepared, layout, arena)


def memory_bytes(state: PyTree, prepared: Prepared) -> int:
    """Bytes that ``take`` will need of the arena; 0 if they are unknown before, or if the arrays are on accelerators."""
    layout = prepared.layout
    if layout is None or not _all_on_cpu(jax.tree_util.tree_leaves(state), prepared):
        return 0
    return rounded_up(layout.memory_bytes, ALIGNMENT_BYTES)


def _take_image(state: PyTree, prepared: Prepared, layout: StateLayout, arena: Arena) -> Image:
    leaves = jax.tree_util.tree_leaves(state)
    for number in prepared.keys:
        leaves[number] = data_of(leaves[number])
    if _all_on_cpu(leaves, prepared):
        memory = arena.hold(rounded_up(layout.memory_bytes, ALIGNMENT_BYTES))
        views = prepared.views(memory)
        arena.copy(
            [(view, _shard(leaves, placement)) for view, placement in zip(views, layout.placements, strict=True)]
        )
        arrays: Sequence[Any] = views
        image: Octets | None = memory
    else:
        arrays, image = _fetched(leaves, layout), None
    parts = [(placement.offset, array) for placement, array in zip(layout.placements, arrays, strict=True)]
    written = tuple(part for part in parts if part[0] < layout.file_bytes)
    return Image(layout, written, image, prepared.local_of(arrays))


def _all_on_cpu(leaves: Sequence[Any], prepared: Prepared) -> bool:
    return all(on_cpu(leaves[number]) for number in prepared.one_per_platform)


def _shard(leaves: Sequence[Any], placement: ShardPlacement) -> _Array:
    leaf = leaves[placement.leaf]
    return np.asarray(leaf if placement.shard is None else leaf.addressable_data(placement.shard))


def _fetched(leaves: Sequence[Any], layout: StateLayout) -> list[Any]:
    """The shards in pinned host memory; those on the host are copied."""
    hosted: dict[int, jax.Array] = {}
    for placement in layout.placements:
        leaf = leaves[placement.leaf]
        if isinstance(leaf, jax.Array) and placement.leaf not in hosted:
            hosted[placement.leaf] = copy_to_host(leaf)
    for array in hosted.values():
        array.block_until_ready()
    found: list[Any] = []
    for placement in layout.placements:
        if placement.leaf in hosted:
            found.append(hosted[placement.leaf].addressable_data(placement.shard or 0))
        else:
            found.append(np.array(leaves[placement.leaf]))
    return found
