"""What can happen to a file at rest, for tests of everything that reads one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.storage.states import flip_bit

PAGE_BYTES = 4096


def _without_last_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _zeroed(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


def _page_zeroed(path: Path) -> None:
    """A page in the middle never reached the disk."""
    data = bytearray(path.read_bytes())
    start = max(0, len(data) // 2 - PAGE_BYTES // 2)
    lost = bytes(min(PAGE_BYTES, len(data) - start))
    if bytes(data[start : start + len(lost)]) == lost:  # nothing but zeros there already
        start, lost = 0, bytes(min(PAGE_BYTES, len(data)))
    data[start : start + len(lost)] = lost
    path.write_bytes(data)


def _lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _linked(path: Path) -> None:
    kept = path.with_name(path.name + ".elsewhere")
    path.rename(kept)
    path.symlink_to(kept)


def _made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip_bit,
    "truncated": _without_last_byte,
    "halved": _halved,
    "emptied": _emptied,
    "zeroed": _zeroed,
    "a page zeroed": _page_zeroed,
    "lengthened": _lengthened,
    "deleted": Path.unlink,
    "linked": _linked,
    "made a folder": _made_a_folder,
}
"""By name; each takes the path of a file that is not empty."""
