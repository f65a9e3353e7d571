"""Compares a checkpoint's files with its manifest and fills a read plan in the same pass: each byte is read once."""

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
"""Files of this size or more are read one by one, each by all threads; smaller files in parallel, each by one."""


def plan_state(
    folder: Path, entries: Sequence[FileEntry], abstract: PyTree, *, without: Container[str] = ()
) -> read_plan.ReadPlan | None:
    """A plan to read the state below a step's folder; None if Orbax must read it.

    The index is read here before it is verified, so anything odd about it means no plan, never a refusal.

    Args:
        folder: the step's folder.
        entries: the files in its manifest.
        abstract: a pytree with the shapes, dtypes and shardings to fill.
        without: paths of leaves that stay as they are in ``abstract``.
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
                raise read_plan.NotUnderstoodError(
                    f"{path}: found a value that ends at byte {spans[-1].stop}, after the file"
                )
    except Exception as error:  # damaged bytes may raise anything; verification reports what is wrong
        logger.debug("%s: Orbax reads it: %r", folder, error)
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
    """Compare this rank's share of the files with the manifest, and fill the plan's spans in them.

    Args:
        folder: the step's folder.
        mine: the entries of this rank's share.
        plan: what to fill; None to compare only.
        threads: how many read at once.
        transient_seconds: how long a transient error of storage is retried.

    Raises:
        DamagedFileError: a file is missing, of another size, or of another content.
        OSError: storage does not answer, or denies access.
    """
    digests.verify_sizes(folder, mine, threads=threads, transient_seconds=transient_seconds)
    planned = _planned(plan)
    rest = [entry for entry in mine if entry.path not in planned]
    digests.verify_digests(folder, rest, threads=threads, transient_seconds=transient_seconds)
    chosen = [entry for entry in mine if entry.path in planned]
    _read_files(folder, chosen, planned, threads=threads, transient_seconds=transient_seconds, whole=True)


def read_others(
    folder: Path,
    others: Sequence[FileEntry],
    plan: read_plan.ReadPlan,
    *,
    threads: int,
    transient_seconds: float,
) -> None:
    """Fill the plan's spans in files that other ranks have verified.

    Args:
        folder: the step's folder.
        others: the entries of the other ranks' shares.
        plan: what to fill.
        threads: how many read at once.
        transient_seconds: how long a transient error of storage is retried.

    Raises:
        DamagedFileError: a file is missing or too short.
        OSError: storage does not answer, or denies access.
    """
    planned = _planned(plan)
    chosen = [entry for entry in others if entry.path in planned]
    _read_files(folder, chosen, planned, threads=threads, transient_seconds=transient_seconds, whole=False)


def _planned(plan: read_plan.ReadPlan | None) -> dict[str, list[hashing_reader.ReadSpan]]:
    return {} if plan is None else {f"{STATE_FOLDER}/{path}": spans for path, spans in plan.spans.items()}


def _read_files(
    folder: Path,
    entries: Sequence[FileEntry],
    planned: Mapping[str, list[hashing_reader.ReadSpan]],
    *,
    threads: int,
    transient_seconds: float,
    whole: bool,
) -> None:
    def read(entry: FileEntry, threads: int) -> None:
        spans = planned[entry.path]
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
        raise digests.DamagedFileError(f"{entry.path}: expected {entry.size} bytes, found fewer") from None
    if whole and digest != entry.digest:
        raise digests.DamagedFileError(
            f"{entry.path}: digest: expected {entry.digest}, found {digest} over {entry.size} bytes"
        )
