"""Room on storage, checked before each save, so that a warning comes before the disk is full."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_contract.runfolder import Found, RunFolder

EARLY_CHECKPOINTS: Final = 3
"""A warning is due when there is room for fewer checkpoints than this."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Room:
    """``free_bytes`` as the file system reports them (quotas are not visible), and what one checkpoint needs."""

    free_bytes: int
    needed_bytes: int

    @property
    def is_short(self) -> bool:
        """Whether the next checkpoint does not fit."""
        return self.free_bytes < self.needed_bytes

    @property
    def is_getting_short(self) -> bool:
        """Whether it is time to warn."""
        return self.free_bytes < EARLY_CHECKPOINTS * self.needed_bytes

    def __str__(self) -> str:
        missing = max(0, self.needed_bytes - self.free_bytes)
        text = f"{self.free_bytes:,} bytes are free and a checkpoint needs about {self.needed_bytes:,}"
        return f"{text}: {missing:,} are missing" if missing else text


def room(folder: RunFolder, state_bytes: int) -> Room:
    """Room for one more checkpoint of a run. Raises OSError.

    The need is the size of the newest checkpoint or ``state_bytes``, whichever is larger.
    """
    newest = next((entry for entry in folder.walk() if isinstance(entry, Found)), None)
    stored = sum(entry.size for entry in newest.manifest.files) if newest else 0
    return Room(free_bytes(folder.root), max(stored, state_bytes))


def free_bytes(folder: Path) -> int:
    """Bytes that a program without privileges can still write there. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
