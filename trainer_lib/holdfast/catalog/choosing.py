"""Choosing the checkpoint to load outside a session: the newest valid one, one step, or the best by a metric."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from holdfast import errors
from holdfast.catalog.listing import CheckpointFolder, Validity
from holdfast.store.read.candidates import CheckpointChoice, Metric, by_metric
from holdfast_contract.manifest import Rejection
from holdfast_contract.runfolder import Found

Read = TypeVar("Read")
log = logging.getLogger("holdfast")
_LOOKS: Final = 10
"""How often the checkpoints are listed at most, under a retention that deletes each one before it is read."""


def choose(
    holder: CheckpointFolder, choice: CheckpointChoice, read: Callable[[Found], Read]
) -> tuple[Found, Read, tuple[Rejection, ...]]:
    """The checkpoint to load, what ``read`` returned for it, and the checkpoints refused before it.

    A given step is read from the newest attempt that has it, and no other step replaces it. ``best`` tries checkpoints from
    the best value on; otherwise the newest comes first. If none could be read, and retention deleted some of them
    meanwhile, the folder is listed again.

    Args:
        holder: the folder with the checkpoints.
        choice: the newest, one step, or the best by a metric.
        read: reads a checkpoint and compares every byte with the manifest; raises DamagedCheckpoint to refuse it.

    Raises:
        DamagedCheckpoint: the given step is damaged.
        NoValidCheckpoint: there are candidates, and all were refused.
        FileNotFoundError: there is no candidate.
        StorageError: storage did not answer, or denied access.
    """
    for _ in range(_LOOKS - 1):
        deleted: list[Path] = []
        try:
            return _choose_among_listed(holder, choice, read, deleted)
        except (errors.DamagedCheckpoint, errors.NoValidCheckpoint):
            if not deleted:
                raise
            log.debug("%s: deleted while it was read; listing the checkpoints again", deleted[-1])
    return _choose_among_listed(holder, choice, read, [])


def _choose_among_listed(
    holder: CheckpointFolder, choice: CheckpointChoice, read: Callable[[Found], Read], deleted: list[Path]
) -> tuple[Found, Read, tuple[Rejection, ...]]:
    """As ``choose``, from one listing. ``deleted`` receives the folders that disappeared while they were read."""
    if choice.step is not None:
        entry = _newest_of(holder, choice.step)
        return *_read_unless_deleted(holder, entry, read, deleted), ()
    refused: list[Rejection] = []
    for entry in holder.entries() if choice.best is None else _best_first(holder, choice.best):
        try:
            found, result = _read_unless_deleted(holder, entry, read, deleted)
        except errors.DamagedCheckpoint as damaged:
            number = entry.ref if isinstance(entry, Found) else entry
            refused.append(Rejection(number.attempt, number.step, damaged.reason))
            continue
        newer = (r for r in refused if choice.best or (r.attempt, r.step) > (found.ref.attempt, found.ref.step))
        return found, result, tuple(sorted(newer, key=lambda r: (r.attempt, r.step), reverse=True))
    if refused:
        raise errors.NoValidCheckpoint(holder.root, refused)
    raise FileNotFoundError(f"{holder.root}: found no checkpoint")


def _read_unless_deleted(
    holder: CheckpointFolder, entry: Found | Rejection, read: Callable[[Found], Read], deleted: list[Path]
) -> tuple[Found, Read]:
    """As ``read_one``; whatever a reader meets in a folder that is gone is a refusal, and the folder is noted."""
    try:
        return read_one(holder, entry, read)
    except Exception as error:
        if isinstance(entry, Rejection) or os.path.lexists(entry.folder):
            raise
        deleted.append(entry.folder)
        raise errors.DamagedCheckpoint(entry.folder, reason="deleted while it was read") from error


def read_one(holder: CheckpointFolder, entry: Found | Rejection, read: Callable[[Found], Read]) -> tuple[Found, Read]:
    """Read this checkpoint and no other, after a check of its files' sizes.

    Args:
        holder: the folder that has it.
        entry: the checkpoint, or the refusal of its manifest.
        read: as for ``choose``.

    Raises:
        DamagedCheckpoint: it may not be used.
        StorageError: storage did not answer, or denied access.
    """
    found = require_valid(holder, entry, deep=False)
    return found, read(found)


def require_valid(holder: CheckpointFolder, entry: Found | Rejection, *, deep: bool) -> Found:
    """Check a checkpoint and return it.

    Args:
        holder: the folder that has it.
        entry: the checkpoint, or the refusal of its manifest.
        deep: compare digests, not only sizes.

    Raises:
        DamagedCheckpoint: it may not be used.
        StorageError: storage did not answer, or denied access.
    """
    checked = holder.check(entry, deep=deep)
    if checked.status is Validity.UNKNOWN:
        raise errors.StorageError(checked.reason, path=checked.folder)
    if not checked.valid or isinstance(entry, Rejection):
        raise errors.DamagedCheckpoint(checked.folder, reason=checked.reason)
    return entry


def _best_first(holder: CheckpointFolder, metric: Metric) -> list[Found | Rejection]:
    """Refusals first, because any of them may have been the best."""
    entries = list(holder.entries())
    found = [entry for entry in entries if isinstance(entry, Found)]
    rated = by_metric(found, metric)
    if found and not rated:
        raise FileNotFoundError(f"{holder.root}: no checkpoint has a value of the metric {metric[0]!r}")
    return [*(entry for entry in entries if isinstance(entry, Rejection)), *rated]


def _newest_of(holder: CheckpointFolder, step: int) -> Found | Rejection:
    for entry in holder.entries():  # newest first, so the last attempt counts
        if step == (entry.ref.step if isinstance(entry, Found) else entry.step):
            return entry
    raise FileNotFoundError(f"{holder.root}: found no checkpoint of step {step}")
