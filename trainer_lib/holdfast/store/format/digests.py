"""Digests of a checkpoint's files: which rank computes which, and how they are compared."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import xxhash

from holdfast.store.format import fs, regular
from holdfast_contract.manifest import FileEntry

T = TypeVar("T")
R = TypeVar("R")

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_FEW_FILES: Final = 64
"""Checking the sizes of fewer files takes less time than starting threads."""
_PROCESS_PART: Final = re.compile(r"(?:.*[._-])?process[_-](\d+)(?:\..*)?", re.ASCII)


class DamagedFileError(Exception):
    """A file differs from its manifest entry; the text names the file, what was expected and what was found."""


def writer_of(relative_path: str, *, default: int = 0) -> int:
    """The rank that wrote a file of a checkpoint: the one that its path names, otherwise ``default``.

    Each writer syncs and hashes its own files, because on a network file system only its machine can flush them.
    """
    for part in relative_path.split("/"):
        match = _PROCESS_PART.fullmatch(part)
        if match:
            return int(match.group(1))
    return default


def describe_files(folder: Path, relative_paths: Iterable[str], *, threads: int) -> tuple[FileEntry, ...]:
    """Size and digest of files.

    Args:
        folder: the folder that paths are relative to.
        relative_paths: the files.
        threads: how many files are read at once.

    Raises:
        OSError: a file is missing or cannot be read.
    """

    def entry(relative: str) -> FileEntry:
        size, digest = hash_file(folder / relative)
        return FileEntry(relative, size, digest)

    return tuple(mapped(entry, list(relative_paths), threads=threads))


def hash_file(path: Path) -> tuple[int, str]:
    """(bytes, xxh3-128 in hexadecimal) of a regular file, not through a link. Raises OSError."""
    hasher = xxhash.xxh3_128()
    size = 0
    with regular.opened(path) as fd:
        buffer = bytearray(_BLOCK_BYTES)
        view = memoryview(buffer)
        while count := os.readv(fd, [buffer]):
            hasher.update(view[:count])
            size += count
    return size, hasher.hexdigest()


def share_of(entries: Sequence[FileEntry], rank: int, ranks: int) -> tuple[FileEntry, ...]:
    """The files that one rank verifies; each file belongs to exactly one rank, and bytes are spread evenly.

    Every rank computes the same: largest file first, to the rank with the fewest bytes so far.

    Args:
        entries: all files of the checkpoint.
        rank: the rank that asks.
        ranks: the number of ranks.
    """
    load = [0] * ranks
    mine: list[FileEntry] = []
    for entry in sorted(entries, key=lambda e: (-e.size, e.path)):
        target = min(range(ranks), key=load.__getitem__)
        load[target] += entry.size + 1
        if target == rank:
            mine.append(entry)
    return tuple(mine)


def verify_files(folder: Path, entries: Sequence[FileEntry], *, threads: int, transient_seconds: float) -> None:
    """Compare the sizes of all files with the manifest, then their digests.

    Args:
        folder: the step's folder.
        entries: the files, as the manifest lists them.
        threads: how many files are read at once.
        transient_seconds: how long a transient error of storage is retried.

    Raises:
        DamagedFileError: a file is missing, of another size, or of another content.
        OSError: storage did not answer for ``transient_seconds``, or denies access; the file may be intact.
    """
    verify_sizes(folder, entries, threads=threads, transient_seconds=transient_seconds)
    verify_digests(folder, entries, threads=threads, transient_seconds=transient_seconds)


def verify_digests(folder: Path, entries: Sequence[FileEntry], *, threads: int, transient_seconds: float) -> None:
    """Read and hash all files.

    Args:
        folder, entries, threads, transient_seconds: as for ``verify_files``.

    Raises:
        DamagedFileError, OSError: as ``verify_files``.
    """
    _check_all(_check_digest, folder, entries, threads=threads, transient_seconds=transient_seconds)


def verify_sizes(folder: Path, entries: Sequence[FileEntry], *, threads: int, transient_seconds: float) -> None:
    """Check that all files exist and have the listed size, without reading them.

    Args:
        folder, entries, threads, transient_seconds: as for ``verify_files``.

    Raises:
        DamagedFileError, OSError: as ``verify_files``.
    """
    few = len(entries) < _FEW_FILES
    _check_all(_check_size, folder, entries, threads=1 if few else threads, transient_seconds=transient_seconds)


def _check_all(
    check: Callable[[Path, FileEntry], None],
    folder: Path,
    entries: Sequence[FileEntry],
    *,
    threads: int,
    transient_seconds: float,
) -> None:
    def retried(entry: FileEntry) -> None:
        fs.retry_transient(lambda: check(folder, entry), seconds=transient_seconds)

    mapped(retried, entries, threads=threads)


def _check_size(folder: Path, entry: FileEntry) -> None:
    _refuse_linked_folders(folder, entry.path)
    try:
        status = os.lstat(folder / entry.path)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(f"{entry.path}: missing; expected {entry.size} bytes") from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFileError(f"{entry.path}: found a link, folder or device; expected a regular file")
    if status.st_size != entry.size:
        raise DamagedFileError(f"{entry.path}: size: expected {entry.size} bytes, found {status.st_size}")


def _check_digest(folder: Path, entry: FileEntry) -> None:
    try:
        size, digest = hash_file(folder / entry.path)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFileError(f"{entry.path}: missing; expected {entry.size} bytes") from None
    if (size, digest) != (entry.size, entry.digest):
        raise DamagedFileError(f"{entry.path}: digest: expected {entry.digest}, found {digest} over {size} bytes")


def _refuse_linked_folders(folder: Path, relative: str) -> None:
    path = folder
    for part in relative.split("/")[:-1]:
        path = path / part
        if path.is_symlink():
            raise DamagedFileError(f"{relative}: {path.name} is a symbolic link; expected a folder")


def mapped(function: Callable[[T], R], items: Sequence[T], *, threads: int) -> list[R]:
    """The results of a function for all items, in order. The first error is raised.

    Args:
        function: reads or hashes, both of which release the interpreter's lock.
        items: its arguments.
        threads: how many calls run at once.
    """
    if len(items) < 2 or threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="holdfast-digest") as pool:
        return list(pool.map(function, items))
