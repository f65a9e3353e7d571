"""A checkpoint's files compared with its manifest, while what is wanted of them is read: each byte crosses once."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.state.structure import PyTree
from holdfast.store.format import digests, fs, regular
from holdfast.store.read import reader, reads
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import FileEntry

logger = logging.getLogger("holdfast.store")
_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Files from here on are read one after the other by all threads, smaller ones side by side."""


def plan_state(
    folder: Path, entries: Sequence[FileEntry], abstract: PyTree, *, without: Container[str] = ()
) -> reader.Plan | None:
    """How to read the state below a step's folder directly; None if it must be left to Orbax.

    Files are read here before they are verified: whatever is odd about them means no plan, never a refusal.
    """
    sizes = {entry.path: entry.size for entry in entries}

    def read(path: str, offset: int, length: int | None) -> bytes:
        name = f"{STATE_FOLDER}/{path}"
        end = sizes[name] if length is None else offset + length
        if end > sizes[name]:
            raise reader.NotUnderstoodError(f"{path}: found {sizes[name]} bytes, allowed: {end} or more")
        return regular.read_range(folder / name, offset, end - offset)

    try:
        made = reader.plan(read, abstract, without=without)
        for path, pieces in made.pieces.items():
            if pieces[-1].stop > sizes[f"{STATE_FOLDER}/{path}"]:
                raise reader.NotUnderstoodError(f"{path}: found {pieces[-1].stop} bytes used, more than it has")
    except Exception as error:  # damaged bytes may lead to any error; verification says what is wrong
        logger.debug("%s: left to Orbax: %r", folder, error)
        return None
    return made


def verify_and_read(
    folder: Path,
    mine: Sequence[FileEntry],
    plan: reader.Plan | None,
    *,
    threads: int,
    transient_seconds: float,
) -> None:
    """Compare the files ``mine`` with the manifest, and fill what the plan wants of them.

    Raises as ``digests.verify_files``.
    """
    digests.verify_sizes(folder, mine, threads=threads, transient_seconds=transient_seconds)
    wanted = _wanted(plan)
    rest = [entry for entry in mine if entry.path not in wanted]
    digests.verify_digests(folder, rest, threads=threads, transient_seconds=transient_seconds)
    chosen = [entry for entry in mine if entry.path in wanted]
    _read_files(folder, chosen, wanted, threads=threads, transient_seconds=transient_seconds, whole=True)


def read_others(
    folder: Path,
    others: Sequence[FileEntry],
    plan: reader.Plan,
    *,
    threads: int,
    transient_seconds: float,
) -> None:
    """Fill what the plan wants of files that other ranks have verified. Raises OSError, DamagedFileError."""
    wanted = _wanted(plan)
    chosen = [entry for entry in others if entry.path in wanted]
    _read_files(folder, chosen, wanted, threads=threads, transient_seconds=transient_seconds, whole=False)


def _wanted(plan: reader.Plan | None) -> dict[str, list[reads.Piece]]:
    return {} if plan is None else {f"{STATE_FOLDER}/{path}": pieces for path, pieces in plan.pieces.items()}


def _read_files(
    folder: Path,
    entries: Sequence[FileEntry],
    wanted: Mapping[str, list[reads.Piece]],
    *,
    threads: int,
    transient_seconds: float,
    whole: bool,
) -> None:
    def read(entry: FileEntry, threads: int) -> None:
        pieces = wanted[entry.path]
        fs.retry_transient(
            lambda: _read_file(folder, entry, pieces, threads=threads, whole=whole), seconds=transient_seconds
        )

    small = [entry for entry in entries if entry.size < _LARGE_BYTES]
    digests.mapped(lambda entry: read(entry, 1), small, threads=threads)
    for entry in entries:
        if entry.size >= _LARGE_BYTES:
            read(entry, threads)


def _read_file(folder: Path, entry: FileEntry, pieces: Sequence[reads.Piece], *, threads: int, whole: bool) -> None:
    try:
        digest = reads.read_pieces(folder / entry.path, entry.size, pieces, threads=threads, whole=whole)
    except (FileNotFoundError, NotADirectoryError):
        raise digests.DamagedFileError(f"{entry.path}: missing; expected {entry.size} bytes") from None
    except EOFError:
        raise digests.DamagedFileError(f"{entry.path}: shorter than {entry.size} bytes, as expected") from None
    if whole and digest != entry.digest:
        raise digests.DamagedFileError(
            f"{entry.path}: digest: expected {entry.digest}, found {digest} over {entry.size} bytes"
        )
