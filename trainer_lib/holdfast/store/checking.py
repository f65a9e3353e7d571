"""What was just written, read back from storage and compared with the snapshot, bit by bit, before it becomes valid.

Digests of array data are computed while they are written, from memory: they find what changes later, not what storage
did to the bytes on their way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.store import digests
from holdfast.store.handle import logger
from holdfast.store.ocdbt.memory import aligned
from holdfast.store.snapshot import Image, Snapshot
from holdfast.store.structure import Structure
from holdfast_contract.manifest import FileEntry

_BLOCK_BYTES: Final = 8 * 1024 * 1024
_REPORTED: Final = 20  # leaves in one message


class SavedOtherwiseError(Exception):
    """Leaves that are not on storage as they were in memory; the text names them."""


@dataclass
class _Leaf:
    """How one leaf differs. ``greatest``: of the differences of numbers; NaN if only one side is a number."""

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


def compare_part(folder: Path, snapshot: Snapshot, files: tuple[FileEntry, ...], structure: Structure) -> None:
    """Compare this process's file of array data below a step's folder with the snapshot it was written from.

    The file's pages are dropped from memory first, where the system obeys, so that storage answers. What Orbax wrote is
    not compared; that is logged.

    Raises:
        SavedOtherwiseError: a leaf differs. OSError: storage does not answer.
    """
    if not isinstance(snapshot, Image):
        logger.warning("%s: not compared with memory: Orbax wrote it, not Holdfast's writer", folder)
        return
    for entry in files:
        _compare_file(folder / entry.path, snapshot, structure)
        if (found := digests.hash_file(folder / entry.path)) != (entry.size, entry.digest):
            said = f"expected {entry.digest} over {entry.size} bytes, found {found[1]} over {found[0]}"
            raise SavedOtherwiseError(f"{entry.path}: no array differs, but the file does: digest: {said}")


def _compare_file(path: Path, image: Image, structure: Structure) -> None:
    differing: dict[int, _Leaf] = {}
    fd = digests.open_regular(path)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for number, saved, offset in _blocks(image):
            leaf = differing.setdefault(number, _Leaf())
            leaf.total += saved.size
            found = _read(fd, saved, offset, path)
            if found.tobytes() != saved.tobytes():
                leaf.add(saved, found)
    finally:
        os.close(fd)
    wrong = {number: leaf for number, leaf in differing.items() if leaf.wrong}
    if wrong:
        raise SavedOtherwiseError(_text(path, wrong, structure))


def _blocks(image: Image) -> Iterator[tuple[int, npt.NDArray[Any], int]]:
    """(number of the leaf, some of its numbers, where they lie in the file)."""
    pieces = (piece for piece in image.layout.pieces if piece.offset < image.layout.file_bytes)
    for piece, (offset, array) in zip(pieces, image.parts, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1)
        count = max(1, _BLOCK_BYTES // flat.itemsize)
        for start in range(0, flat.size, count):
            yield piece.leaf, flat[start : start + count], offset + start * flat.itemsize


def _read(fd: int, like: npt.NDArray[Any], offset: int, path: Path) -> npt.NDArray[Any]:
    found = aligned(like.shape, like.dtype)
    view = memoryview(found.view(np.uint8)).cast("B")  # type: ignore[arg-type]
    while view:
        count = os.preadv(fd, [view], offset)
        if count == 0:
            raise SavedOtherwiseError(f"{path}: ends at byte {offset}, read back after the save")
        view, offset = view[count:], offset + count
    return found


def _text(path: Path, wrong: dict[int, _Leaf], structure: Structure) -> str:
    said = [
        f"{structure.leaves[number].path}: found {leaf.wrong} of {leaf.total} numbers changed, "
        f"max abs difference {leaf.greatest:.6g}, allowed: none"
        for number, leaf in list(wrong.items())[:_REPORTED]
    ]
    more = f"; {len(wrong) - _REPORTED} more leaves" if len(wrong) > _REPORTED else ""
    return f"read back after the save, {path.name}: {'; '.join(said)}{more}"


__all__ = ["SavedOtherwiseError", "compare_part"]
