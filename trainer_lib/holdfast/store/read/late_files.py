"""Files that another process has written and that this machine does not show whole yet, as network file systems do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast_contract.manifest import FileEntry

_LOOK_SECONDS: Final = 0.05


def await_whole(folder: Path, entries: Iterable[FileEntry], *, deadline: float) -> None:
    """Wait until every file shows as many bytes as its entry lists, but not beyond the deadline.

    It judges nothing: what is still missing or short afterwards is for the verification to refuse.

    Args:
        folder: the step's folder.
        entries: the files to wait for.
        deadline: on the monotonic clock.
    """
    short = [entry for entry in entries if _is_short(folder, entry)]
    while short and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        short = [entry for entry in short if _is_short(folder, entry)]


def _is_short(folder: Path, entry: FileEntry) -> bool:
    try:
        return os.lstat(folder / entry.path).st_size < entry.size
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # the verification retries it, and reports it
        return False
