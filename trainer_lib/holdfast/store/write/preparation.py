"""What is worked out once for a state and used again at every save of one like it: per leaf that costs more than the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from holdfast.state import structure
from holdfast.state.structure import PyTree, Structure
from holdfast.store.format.ocdbt.encode import Leaves
from holdfast.store.handle import logger
from holdfast.store.store_settings import WriterName
from holdfast.store.write import orbax_files
from holdfast.store.write.arena import Octets
from holdfast.store.write.layout import StateLayout, UnwritableError, layout_of


class Prepared:
    """One shape of state. ``layout`` is None where Orbax's writer is to be used, because of ``reason``.

    The properties are computed when they are first asked for: by the saving thread, not by the caller's.
    """

    def __init__(self, state: PyTree, writer: WriterName) -> None:
        self.structure: Structure = structure.structure_of(state)
        self.layout: StateLayout | None = None
        self.reason = "asked for"
        leaves, treedef = jax.tree_util.tree_flatten(state)
        self._skeleton = jax.tree_util.tree_unflatten(treedef, range(len(leaves)))
        if writer == "direct":
            try:
                self.layout = layout_of(state)
            except UnwritableError as error:
                self.reason = str(error)
                logger.info("Orbax's writer is used: %s", error)
        self.keys = tuple(number for number, leaf in enumerate(leaves) if structure.is_key(leaf))
        platforms = {_platform(leaf): number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        self.one_per_platform = tuple(platforms.values())
        self._views: tuple[int, list[npt.NDArray[Any]]] = (0, [])

    def views(self, memory: Octets) -> list[npt.NDArray[Any]]:
        """The places of this process's pieces in memory, as arrays."""
        layout = self.known_layout
        if self._views[0] != memory.ctypes.data or not self._views[1]:
            self._views = (
                memory.ctypes.data,
                [self._view(memory, layout, number) for number in range(len(layout.pieces))],
            )
        return self._views[1]

    def local_of(self, arrays: Sequence[Any]) -> Mapping[str, Any]:
        """By path, those of the pieces' arrays that every process has for itself."""
        layout = self.known_layout
        local = set(layout.local)
        if not local:
            return {}
        found = {}
        for piece, array in zip(layout.pieces, arrays, strict=True):
            if piece.leaf in local:
                found[layout.stored(piece.leaf).path] = array
        return found

    @property
    def known_layout(self) -> StateLayout:
        """The layout where there is one."""
        if self.layout is None:
            raise ValueError(f"no layout: {self.reason}")
        return self.layout

    @cached_property
    def index(self) -> Leaves:
        """All keys, but for the names of files."""
        return Leaves(orbax_files.index_entries(self.known_layout))

    @cached_property
    def tree_metadata(self) -> bytes:
        """See orbax_files."""
        return orbax_files.tree_metadata(self._skeleton, self.known_layout)

    @cached_property
    def array_metadata(self) -> bytes:
        """See orbax_files."""
        return orbax_files.array_metadata(self.known_layout)

    @cached_property
    def shardings(self) -> bytes:
        """See orbax_files."""
        return orbax_files.shardings(self.known_layout)

    def work_out(self) -> None:
        """Compute all properties now."""
        if self.layout is not None:
            _ = self.index, self.tree_metadata, self.array_metadata, self.shardings

    @staticmethod
    def _view(memory: Octets, layout: StateLayout, number: int) -> npt.NDArray[Any]:
        piece = layout.pieces[number]
        stored = layout.stored(piece.leaf)
        octets = memory[piece.offset : piece.offset + piece.nbytes]
        return octets.view(stored.numpy_dtype).reshape(stored.chunk_shape)


class Preparation:
    """Keeps what was prepared for the latest state."""

    def __init__(self, writer: WriterName) -> None:
        self._writer = writer
        self._signature: tuple[Any, list[Any]] | None = None
        self._prepared: Prepared | None = None

    def of(self, state: PyTree) -> Prepared:
        """For this state. Raises UnsupportedLeaf."""
        leaves, treedef = jax.tree_util.tree_flatten(state)
        signature = (treedef, [_signature(leaf) for leaf in leaves])
        if self._prepared is None or signature != self._signature:
            self._prepared = Prepared(state, self._writer)
            self._signature = signature
        return self._prepared


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.sharding
    if isinstance(leaf, np.ndarray | np.generic):
        return type(leaf), leaf.shape, leaf.dtype
    return type(leaf), np.asarray(leaf).dtype  # which for an int depends on its size


def _platform(leaf: jax.Array) -> str:
    device: Any = next(iter(leaf.sharding.device_set))
    return str(device.platform)
