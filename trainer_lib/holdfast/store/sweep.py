"""Deleting the checkpoints that retention does not keep."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from holdfast.policies.keep_rules import KeepRule, StoredCheckpoint, superfluous
from holdfast.store import lineage
from holdfast.store.claim import RunClaim
from holdfast.store.format import fs
from holdfast.store.handle import logger
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import Found

ALWAYS_KEPT: Final = 2
"""So many of the newest checkpoints whose files all have their size are never deleted, whatever the rule; and so many of
each lineage that an attempt left behind when it began anew."""


def apply_retention(
    claim: RunClaim, rule: KeepRule, *, protected: Iterable[CheckpointRef], damaged: Collection[CheckpointRef] = ()
) -> tuple[CheckpointRef, ...]:
    """Delete the checkpoints of this and older attempts that nothing keeps. Rank 0 only.

    Only checkpoints with a readable manifest of this run are deleted. One that cannot be deleted is logged and left.

    Args:
        claim: the run and the attempt that deletes.
        rule: which checkpoints to keep.
        protected: checkpoints to keep whatever the rule says.
        damaged: checkpoints known to be invalid; they do not count among the newest ones that always stay.

    Returns:
        What was deleted, oldest first.

    Raises:
        Superseded: a newer attempt has begun; nothing was deleted.
        OSError: the run's folder cannot be read.
    """
    claim.require_current()
    found = [f for f in claim.folder.survey().found if f.ref.attempt <= claim.attempt]
    stored = [StoredCheckpoint(f.ref, f.manifest.metrics, f.manifest.pinned, f.manifest.elapsed_seconds) for f in found]
    staying = {*protected, *_newest_of_each_lineage(claim, [f for f in found if f.ref not in damaged])}
    removed = []
    for ref in superfluous(stored, rule, protected=staying):
        try:
            fs.discard_folder(claim.folder.step_folder(ref.attempt, ref.step))
        except OSError as error:
            logger.warning("attempt %d, step %d could not be deleted: %s", ref.attempt, ref.step, error)
        else:
            removed.append(ref)
    return tuple(removed)


def _newest_of_each_lineage(claim: RunClaim, found: Sequence[Found]) -> Iterator[CheckpointRef]:
    """Of the present lineage and of each that was left behind, the newest whole ones of ``found``, newest first."""
    for end in (*lineage.begun_anew(claim.folder, up_to=claim.attempt), claim.attempt + 1):
        whole = (f.ref for f in found if f.ref.attempt < end and _has_all_sizes(f))
        yield from islice(whole, ALWAYS_KEPT)


def _has_all_sizes(found: Found) -> bool:
    try:
        return all(os.lstat(found.folder / entry.path).st_size == entry.size for entry in found.manifest.files)
    except OSError:
        return False
