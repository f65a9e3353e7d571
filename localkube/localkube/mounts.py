"""Detaches the mounts in a folder, so that its removal does not delete the data behind them."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_MNT_DETACH = 2
_MOUNT_INFO = Path("/proc/self/mountinfo")
_MOUNT_POINT_FIELD = 4


def mounts_below(folder: Path) -> list[Path]:
    """The mount points in a folder, innermost first; none on a system without mountinfo."""
    if not _MOUNT_INFO.exists():
        return []
    fields = (line.split()[_MOUNT_POINT_FIELD] for line in _MOUNT_INFO.read_text().splitlines())
    points = (Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)) for field in fields)
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def detach_mounts_below(folder: Path) -> None:
    """Detach everything mounted in a folder. Raises OSError if something stays mounted."""
    for point in mounts_below(folder.resolve()):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(point), _MNT_DETACH) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot detach the mount before its folder is removed: {os.strerror(number)}", point)
