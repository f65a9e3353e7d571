"""A process as restricted clusters start it: a UID without a passwd entry, no HOME, a read-only root file system.

``command(*writable)`` goes in front of a program's command; only the named folders, which exist, can be written.
Needs no root: the UID is one of a user namespace, and files keep the owner that they have outside.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

UID: Final = 1_000_730_000
"""As OpenShift chooses them: from a range of the namespace's own."""

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 0x1
REFUSED: Final = 77
"""Exit code where this machine has no user namespaces for us."""


def command(*writable: Path) -> list[str]:
    """What goes in front of a command."""
    return [sys.executable, str(Path(__file__).resolve()), *(str(folder) for folder in writable), "--"]


def demand() -> None:
    """Skip the test where this machine has no user namespaces for us."""
    trial = subprocess.run([*command(), "true"], capture_output=True, text=True, check=False, timeout=30)
    if trial.returncode == REFUSED:
        pytest.skip(trial.stderr.strip())
    assert trial.returncode == 0, trial.stderr


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _read_only(libc: ctypes.CDLL, path: str, *, on: bool, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY if on else 0, 0 if on else MOUNT_ATTR_RDONLY, 0, 0)
    result = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), 32)
    _check(result, f"mount_setattr {path}")


def _enter(libc: ctypes.CDLL) -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{UID} {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path("/proc/self", name).write_text(text)


def _close_root(libc: ctypes.CDLL, writable: list[str]) -> None:
    _check(libc.mount(b"none", b"/", b"", ctypes.c_ulong(MS_REC | MS_PRIVATE), b""), "mount /")
    for folder in writable:
        path = folder.encode()
        _check(libc.mount(path, path, b"", ctypes.c_ulong(MS_BIND), b""), f"mount {folder}")
    _read_only(libc, "/", on=True, flags=AT_RECURSIVE)
    for folder in writable:
        _read_only(libc, folder, on=False, flags=0)


def main(words: list[str]) -> None:
    """Become the command that stands after ``--``."""
    split = words.index("--")
    writable, program = words[:split], words[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _enter(libc)
        _close_root(libc, writable)
    except OSError as problem:
        print(f"refused: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
    assert not any(entry.pw_uid == UID for entry in pwd.getpwall())
    without = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME")
    os.execvpe(program[0], program, {name: value for name, value in os.environ.items() if name not in without})


if __name__ == "__main__":
    main(sys.argv[1:])
