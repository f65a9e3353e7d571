"""Reading back what a save has just written, and comparing it with the snapshot bit by bit, before the save is valid.

Digests of array data are computed from memory during the write. They reveal later changes, but not what storage did to the
bytes during that write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.state.structure import Structure
from holdfast.store.format import digests, orbax_records, regular
from holdfast.store.format.ocdbt.decode import Extent, NotUnderstoodError
from holdfast.store.format.ocdbt.memory import aligned
from holdfast.store.write.orbax_readback import written_chunks
from holdfast.store.write.snapshot import Snapshot, TreeCopy
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import FileEntry

_BLOCK_BYTES: Final = 8 * 1024 * 1024
_REPORTED: Final = 20
"""How many leaves one message names."""


class ReadBackError(Exception):
    """Leaves differ between storage and memory; the text names them."""


@dataclass
class _Leaf:
    """How one leaf differs. ``greatest``: the greatest absolute difference; NaN if no place has numbers on both sides."""

    wrong: int = 0
    total: int = 0
    greatest: float = math.nan

    def add(self, saved: npt.NDArray[Any], found: npt.NDArray[Any]) -> None:
        differs = saved.view(np.uint8).reshape(-1, saved.itemsize) != found.view(np.uint8).reshape(-1, saved.itemsize)
        self.wrong += int(differs.any(axis=1).sum())
        wide = np.complex128 if saved.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore"):
            difference = np.abs(saved.astype(wide) - found.astype(wide))
        if not np.isnan(difference).all():
            self.greatest = float(np.nanmax([self.greatest, np.nanmax(difference)]))


def compare_part(folder: Path, snapshot: Snapshot, files: Sequence[FileEntry], structure: Structure, rank: int) -> None:
    """Compare the array data that this process wrote with the snapshot that it was written from.

    Files are first dropped from the page cache, where the system allows it, so that the data come from storage.

    Args:
        folder: the step's folder.
        snapshot: what was to be written.
        files: the files of this process's part, as the manifest will list them.
        structure: has the names of the leaves.
        rank: this process.

    Raises:
        ReadBackError: a leaf or a file differs.
        OSError: storage does not answer.
    """
    for entry in files:
        regular.forget(folder / entry.path)
    differing: dict[int, _Leaf] = {}
    try:
        for block in _blocks(folder, snapshot, files, rank):
            leaf = differing.setdefault(block.leaf, _Leaf())
            leaf.total += block.saved.size
            found = block.read()
            if found.tobytes() != block.saved.tobytes():
                leaf.add(block.saved, found)
    except (NotUnderstoodError, EOFError) as error:
        raise ReadBackError(f"read back after the save: {error}") from None
    wrong = {number: leaf for number, leaf in differing.items() if leaf.wrong}
    if wrong:
        raise ReadBackError(_text(wrong, structure))
    for entry in files:
        size, digest = digests.hash_file(folder / entry.path)
        if (size, digest) != (entry.size, entry.digest):
            difference = f"expected {entry.digest} over {entry.size} bytes, found {digest} over {size}"
            raise ReadBackError(f"{entry.path}: no array differs, but the file does: digest: {difference}")


@dataclass(frozen=True)
class _Block:
    """Some elements of leaf number ``leaf`` as they were saved, and a function that reads the same ones from storage."""

    leaf: int
    saved: npt.NDArray[Any]
    read: Callable[[], npt.NDArray[Any]]


def _blocks(folder: Path, snapshot: Snapshot, files: Sequence[FileEntry], rank: int) -> Iterator[_Block]:
    if isinstance(snapshot, TreeCopy):
        yield from _blocks_of_orbax(folder / STATE_FOLDER, snapshot, rank)
        return
    placements = (p for p in snapshot.layout.placements if p.offset < snapshot.layout.file_bytes)
    for placement, (offset, array) in zip(placements, snapshot.parts, strict=True):
        yield from _split(placement.leaf, array, folder / files[0].path, offset)


def _blocks_of_orbax(state: Path, snapshot: TreeCopy, rank: int) -> Iterator[_Block]:
    part = state / orbax_records.part_folder(rank)
    metadata = state / orbax_records.array_metadata_file(rank)
    for chunk in written_chunks(part, metadata, snapshot.state()):
        if isinstance(chunk.value, Extent):
            yield from _split(chunk.leaf, chunk.saved, part / chunk.value.path, chunk.value.offset)
        else:
            yield _Block(chunk.leaf, chunk.saved, partial(np.frombuffer, chunk.value, chunk.saved.dtype))


def _split(leaf: int, array: npt.NDArray[Any], path: Path, offset: int) -> Iterator[_Block]:
    flat = np.ascontiguousarray(array).reshape(-1)
    count = max(1, _BLOCK_BYTES // flat.itemsize)
    for start in range(0, flat.size, count):
        saved = flat[start : start + count]
        yield _Block(leaf, saved, partial(_read, path, saved, offset + start * flat.itemsize))


def _read(path: Path, like: npt.NDArray[Any], offset: int) -> npt.NDArray[Any]:
    found = aligned(like.shape, like.dtype)
    view = memoryview(found.view(np.uint8)).cast("B")  # type: ignore[arg-type]
    with regular.opened(path) as fd:
        regular.fill(fd, [view], offset, path)
    return found


def _text(wrong: dict[int, _Leaf], structure: Structure) -> str:
    differences = [
        f"{structure.leaves[number].path}: found {leaf.wrong} of {leaf.total} numbers changed, "
        f"max abs difference {leaf.greatest:.6g}, allowed: none"
        for number, leaf in list(wrong.items())[:_REPORTED]
    ]
    more = f"; {len(wrong) - _REPORTED} more leaves" if len(wrong) > _REPORTED else ""
    return f"read back after the save: {'; '.join(differences)}{more}"


__all__ = ["ReadBackError", "compare_part"]
