"""Runs a command as another user, without rights and groups: `python as_user.py UID FOLDER... -- COMMAND...` (root only).

The folders are made reachable for that user, in a mount namespace of the command's own: where a folder above one of them
is closed to others, an empty one takes its place that holds the wanted folders alone.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18

LIBC = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    words = (source, str(target), kind)
    check(LIBC.mount(*(w.encode() for w in words), ctypes.c_ulong(flags), options.encode()), f"mount on {target}")


def closed_above(folder: Path) -> Path | None:
    """The outermost folder on the way that others may not pass."""
    way = [*reversed(folder.parents), folder]
    return next((part for part in way if not part.stat().st_mode & stat.S_IXOTH), None)


def open_up(folders: list[Path]) -> None:
    check(LIBC.unshare(CLONE_NEWNS), "unshare")
    mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
    handles = [(folder, closed_above(folder), os.open(folder, os.O_PATH)) for folder in folders]
    for closed in {closed for _, closed, _ in handles if closed}:
        mount("open", closed, "tmpfs", 0, "mode=0755")
    for folder, closed, handle in handles:
        if closed:
            folder.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{handle}", folder, "", MS_BIND | MS_REC)
        os.close(handle)


def main(words: list[str]) -> None:
    split = words.index("--")
    uid, command = int(words[0]), words[split + 1 :]
    open_up([Path(word).resolve() for word in words[1:split]])
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
