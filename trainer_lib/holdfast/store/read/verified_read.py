"""A checkpoint's files compared with its manifest, while what is wanted of them is read: each byte crosses once."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.state.structure import PyTree
from holdfast.store.format import digests, fs, regular
from holdfast.store.read import hashing_reader, read_plan
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import FileEntry

logger = logging.getLogger("holdfast.store")
_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Files from here on are read one after the other by all threads, smaller ones side by side."""


def plan_state(
    folder: Path, entries: Sequence[FileEntry], abstract: PyTree, *, without: Container[str] = ()
) -> read_plan.ReadPlan | None:
    """How to read the state below a step's folder directly; None if it must be left to Orbax.

    Files are read here before they are verified: whatever is odd about them means no plan, never a refusal.
    """
    sizes = {entry.path: entry.size for entry in entries}

    def read(path: str, offset: int, length: int | None) -> bytes:
        name = f"{STATE_FOLDER}/{path}"
        end = sizes[name] if length is None else offset + length
        if end > sizes[name]:
            raise read_plan.NotUnderstoodError(f"{path}: found {sizes[name]} bytes, allowed: {end} or more")
        return regular.read_range(folder / name, offset, end - offset)

    try:
        made = read_plan.plan(read, abstract, without=without)
        for path, spans in made.spans.items():
            if spans[-1].stop > sizes[f"{STATE_FOLDER}/{path}"]:
                raise read_plan.NotUnderstoodError(f"{path}: found {spans[-1].stop} bytes used, more than it has")
    except Exception as error:  # damaged bytes may lead to any error; verification says what is wrong
        logger.debug("%s: left to Orbax: %r", folder, error)
        return None
    return made


def verify_and_read(
    folder: Path,
    mine: Sequence[FileEntry],
    plan: read_plan.ReadPlan | None,
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
    plan: read_plan.ReadPlan,
    *,
    threads: int,
    transient_seconds: float,
) -> None:
    """Fill what the plan wants of files that other ranks have verified. Raises OSError, DamagedFileError."""
    wanted = _wanted(plan)
    chosen = [entry for entry in others if entry.path in wanted]
    _read_files(folder, chosen, wanted, threads=threads, transient_seconds=transient_seconds, whole=False)


def _wanted(plan: read_plan.ReadPlan | None) -> dict[str, list[hashing_reader.ReadSpan]]:
    return {} if plan is None else {f"{STATE_FOLDER}/{path}": spans for path, spans in plan.spans.items()}


def _read_files(
    folder: Path,
    entries: Sequence[FileEntry],
    wanted: Mapping[str, list[hashing_reader.ReadSpan]],
    *,
    threads: int,
    transient_seconds: float,
    whole: bool,
) -> None:
    def read(entry: FileEntry, threads: int) -> None:
        spans = wanted[entry.path]
        fs.retry_transient(
            lambda: _read_file(folder, entry, spans, threads=threads, whole=whole), seconds=transient_seconds
        )

    small = [entry for entry in entries if entry.size < _LARGE_BYTES]
    digests.mapped(lambda entry: read(entry, 1), small, threads=threads)
    for entry in entries:
        if entry.size >= _LARGE_BYTES:
            read(entry, threads)


def _read_file(
    folder: Path, entry: FileEntry, spans: Sequence[hashing_reader.ReadSpan], *, threads: int, whole: bool
) -> None:
    try:
        digest = hashing_reader.read_spans(folder / entry.path, entry.size, spans, threads=threads, whole=whole)
    except (FileNotFoundError, NotADirectoryError):
        raise digests.DamagedFileError(f"{entry.path}: missing; expected {entry.size} bytes") from None
    except EOFError:
        raise digests.DamagedFileError(f"{entry.path}: shorter than {entry.size} bytes, as expected") from None
    if whole and digest != entry.digest:
        raise digests.DamagedFileError(
            f"{entry.path}: digest: expected {entry.digest}, found {digest} over {entry.size} bytes"
        )
