"""What is computed once for a state and reused by every save of a similar one: per leaf it costs more than the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from holdfast.state import structure
from holdfast.state.structure import PyTree, Structure
from holdfast.state.weak_types import is_weak
from holdfast.store.format.ocdbt.encode import Leaves
from holdfast.store.handle import logger
from holdfast.store.store_settings import WriterName
from holdfast.store.write import orbax_files
from holdfast.store.write.arena import Octets
from holdfast.store.write.layout import StateLayout, UnwritableError, layout_of


class Prepared:
    """Everything about a state but its numbers. ``layout`` is None where Orbax's writer is used; ``reason`` says why.

    The properties are computed on first use, by the saving thread and not by the caller's.
    """

    def __init__(self, state: PyTree, writer: WriterName) -> None:
        self.structure: Structure = structure.structure_of(state)
        self.layout: StateLayout | None = None
        self.reason = "the setting writer is 'orbax'"
        leaves, treedef = jax.tree_util.tree_flatten(state)
        self._skeleton = jax.tree_util.tree_unflatten(treedef, range(len(leaves)))
        if writer == "direct":
            try:
                self.layout = layout_of(state)
            except UnwritableError as error:
                self.reason = str(error)
                logger.info("Orbax's writer saves this state: %s", error)
        self.keys = tuple(number for number, leaf in enumerate(leaves) if structure.is_key(leaf))
        platforms = {_platform(leaf): number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        self.one_per_platform = tuple(platforms.values())
        self._views: tuple[int, list[npt.NDArray[Any]]] = (0, [])

    def views(self, memory: Octets) -> list[npt.NDArray[Any]]:
        """This process's shards in ``memory``, as arrays, in the order of the layout."""
        layout = self.known_layout
        if self._views[0] != memory.ctypes.data or not self._views[1]:
            self._views = (
                memory.ctypes.data,
                [self._view(memory, layout, number) for number in range(len(layout.placements))],
            )
        return self._views[1]

    def local_of(self, arrays: Sequence[Any]) -> Mapping[str, Any]:
        """By path, the arrays that every process has for itself. ``arrays``: in the order of the layout's placements."""
        layout = self.known_layout
        local = set(layout.local)
        if not local:
            return {}
        found = {}
        for placement, array in zip(layout.placements, arrays, strict=True):
            if placement.leaf in local:
                found[layout.stored(placement.leaf).path] = array
        return found

    @property
    def known_layout(self) -> StateLayout:
        """The layout. Raises ValueError where there is none."""
        if self.layout is None:
            raise ValueError(f"no layout: {self.reason}")
        return self.layout

    @cached_property
    def index(self) -> Leaves:
        """The index of all arrays, without the names of the files."""
        return Leaves(orbax_files.index_entries(self.known_layout))

    @cached_property
    def tree_metadata(self) -> bytes:
        """As in ``orbax_files``."""
        return orbax_files.tree_metadata(self._skeleton, self.known_layout)

    @cached_property
    def array_metadata(self) -> bytes:
        """As in ``orbax_files``."""
        return orbax_files.array_metadata(self.known_layout)

    @cached_property
    def shardings(self) -> bytes:
        """As in ``orbax_files``."""
        return orbax_files.shardings(self.known_layout)

    def compute(self) -> None:
        """Compute all properties now."""
        if self.layout is not None:
            _ = self.index, self.tree_metadata, self.array_metadata, self.shardings

    @staticmethod
    def _view(memory: Octets, layout: StateLayout, number: int) -> npt.NDArray[Any]:
        placement = layout.placements[number]
        stored = layout.stored(placement.leaf)
        octets = memory[placement.offset : placement.offset + placement.nbytes]
        return octets.view(stored.numpy_dtype).reshape(stored.chunk_shape)


class Preparation:
    """Keeps what was prepared for the latest kind of state."""

    def __init__(self, writer: WriterName) -> None:
        self._writer = writer
        self._signature: tuple[Any, list[Any]] | None = None
        self._prepared: Prepared | None = None

    def of(self, state: PyTree) -> Prepared:
        """What is prepared for ``state``; computed anew if its leaves differ from the last one. Raises UnsupportedLeaf."""
        leaves, treedef = jax.tree_util.tree_flatten(state)
        signature = (treedef, [_signature(leaf) for leaf in leaves])
        if self._prepared is None or signature != self._signature:
            self._prepared = Prepared(state, self._writer)
            self._signature = signature
        return self._prepared


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.sharding, is_weak(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        return type(leaf), leaf.shape, leaf.dtype
    return type(leaf), np.asarray(leaf).dtype  # an int's dtype depends on its size


def _platform(leaf: jax.Array) -> str:
    device: Any = next(iter(leaf.sharding.device_set))
    return str(device.platform)
