"""Deleting what retention does not keep."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Final

from holdfast.policies.retention import Kept, Retention, superfluous
from holdfast.store.claim import RunClaim
from holdfast.store.format import fs
from holdfast.store.handle import logger
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import Found

ALWAYS_KEPT: Final = 2
"""So many of the newest checkpoints whose files all have their size are never deleted, whatever the rule."""


def apply_retention(
    claim: RunClaim, rule: Retention, *, protected: Iterable[CheckpointRef], damaged: Collection[CheckpointRef] = ()
) -> tuple[CheckpointRef, ...]:
    """Delete this and older attempts' checkpoints that nothing keeps; what went, oldest first. Rank 0 only.

    Nothing without a readable manifest of this run is touched, and nothing at all once a newer attempt has begun
    (raises Superseded). A checkpoint that cannot be deleted is left and logged. ``damaged`` ones are known not to be
    valid: they do not count among the newest that always stay.
    """
    claim.require_current()
    found = [f for f in claim.folder.survey().found if f.ref.attempt <= claim.attempt]
    kept = [Kept(f.ref, f.manifest.metrics, f.manifest.pinned, f.manifest.elapsed_seconds) for f in found]
    whole = (f.ref for f in found if f.ref not in damaged and _has_all_sizes(f))
    newest_whole = [ref for ref, _ in zip(whole, range(ALWAYS_KEPT), strict=False)]
    removed = []
    for ref in superfluous(kept, rule, protected={*protected, *newest_whole}):
        try:
            fs.discard_folder(claim.folder.step_folder(ref.attempt, ref.step))
        except OSError as error:
            logger.warning("attempt %d, step %d could not be deleted: %s", ref.attempt, ref.step, error)
        else:
            removed.append(ref)
    return tuple(removed)


def _has_all_sizes(found: Found) -> bool:
    try:
        return all(os.lstat(found.folder / entry.path).st_size == entry.size for entry in found.manifest.files)
    except OSError:
        return False
