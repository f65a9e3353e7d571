"""Durable file operations. Standard library only.

Every operation whose loss in a crash would matter runs inside ``operation``, where tests inject errors and kills before and
after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from holdfast_contract.keys import TRASH_PREFIX

T = TypeVar("T")

FaultHook = Callable[[str, Path], None]
"""Called with ``before:<operation>`` or ``after:<operation>`` and the path; may raise OSError or kill the process."""

TRANSIENT: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENOTCONN,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EREMOTEIO,
    }
)
"""Errors on the path to storage rather than in the stored data, so they are retried."""

_PART_SUFFIX: Final = ".part"
_hook: FaultHook | None = None


def set_fault_hook(hook: FaultHook | None) -> None:
    """Install a test hook for the whole process; None removes it."""
    global _hook  # noqa: PLW0603  one hook for the whole process, on purpose
    _hook = hook


@contextlib.contextmanager
def operation(name: str, path: Path) -> Iterator[None]:
    """A durable operation on ``path``, which tests can fail or interrupt."""
    hook = _hook
    if hook is None:
        yield
        return
    hook(f"before:{name}", path)
    yield
    hook(f"after:{name}", path)


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Create one folder. Raises FileExistsError unless ``exist_ok``."""
    with operation("mkdir", path):
        try:
            path.mkdir()
        except FileExistsError:
            if not exist_ok or path.is_symlink():
                raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    with operation("sync-folder", path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable. Does not follow links."""
    with operation("sync-file", path):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_file(path: Path, data: bytes) -> None:
    """Create a new file and make its bytes durable; its name becomes durable when the folder is synced."""
    with operation("write", path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(fd)


def publish_file(path: Path, data: bytes) -> None:
    """Write a file atomically, replacing an older one: temporary name, fsync, rename, fsync of the folder."""
    part = _part_of(path)
    remove_file(part)
    write_file(part, data)
    rename(part, path)
    sync_folder(path.parent)


def publish_new_file(path: Path, data: bytes) -> None:
    """Like ``publish_file``, but only one of several racing writers succeeds; the others get FileExistsError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}{_PART_SUFFIX}")
    write_file(part, data)
    try:
        with operation("link", path):
            os.link(part, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        write_file(path, data)  # no hard links on this file system: exclusive, but not atomic
    finally:
        remove_file(part)
    sync_folder(path.parent)


def rename(source: Path, target: Path) -> None:
    """Rename; durable once the folder is synced."""
    with operation("rename", target):
        source.rename(target)


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    if not os.path.lexists(path):
        return
    with operation("remove", path):
        path.unlink(missing_ok=True)


def discard_folder(path: Path, *, unless: str = "") -> bool:
    """Remove a folder in two steps. It is renamed first, so no reader ever sees half of it.

    With ``unless``: if a file of that name has appeared in the folder meanwhile, the folder is put back. Returns whether
    the folder was removed.

    Raises:
        OSError: renaming failed and nothing changed, or removing failed and the next claim removes the rest.
    """
    trash = path.with_name(f"{TRASH_PREFIX}{path.name}-{os.getpid()}-{time.monotonic_ns()}")
    rename(path, trash)
    if unless and os.path.lexists(trash / unless):
        rename(trash, path)
        return False
    sync_folder(path.parent)
    empty_trash(trash)
    return True


def empty_trash(trash: Path) -> None:
    """Remove a folder that was renamed to trash; links in it are removed, not followed. Raises ValueError, OSError."""
    if not trash.name.startswith(TRASH_PREFIX):
        raise ValueError(f"path: found {trash}, allowed: a name that begins with {TRASH_PREFIX!r}")
    with operation("remove-tree", trash):
        shutil.rmtree(trash)


def walk_files(folder: Path) -> Iterator[Path]:
    """Every file below a folder, in a fixed order.

    Raises:
        OSError: a link was found (ELOOP), or storage does not answer.
    """
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda e: e.name)
    for entry in found:
        path = Path(entry.path)
        if entry.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(path)
        else:
            yield path


def walk_folders(folder: Path) -> Iterator[Path]:
    """``folder`` and every folder below it, deepest first: the order in which to sync them."""
    with os.scandir(folder) as entries:
        below = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    for path in below:
        yield from walk_folders(Path(path))
    yield folder


def retry_transient(action: Callable[[], T], *, seconds: float) -> T:
    """Call ``action``, and again after a transient OSError, with back-off, for at most ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + _PART_SUFFIX)
