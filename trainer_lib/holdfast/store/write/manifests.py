"""The manifest of a save."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import platform
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, cast

import jax

from holdfast.distributed.coordination import Coordination
from holdfast.store.claim import RunClaim
from holdfast.store.handle import logger
from holdfast.store.write.save_work import SaveWork
from holdfast_contract.manifest import FORMAT, FileEntry, Manifest

_DISTRIBUTIONS = {"holdfast": "holdfast-training"} | {
    name: name for name in ("jax", "jaxlib", "numpy", "orbax-checkpoint", "tensorstore")
}
"""Names in the manifest, with the distributions whose versions they stand for."""


def build(claim: RunClaim, work: SaveWork, files: Iterable[FileEntry], coordination: Coordination) -> Manifest:
    """The manifest of a save whose files are all durable.

    Args:
        claim: names run, job and attempt.
        work: what was saved.
        files: every file of the step's folder but the manifest, with size and digest.
        coordination: has the number of processes.
    """
    return Manifest(
        format=FORMAT,
        run=claim.folder.run,
        job_uid=claim.owner.job_uid,
        attempt=claim.attempt,
        step=work.step,
        process_count=coordination.process_count,
        device_kind=jax.devices()[0].device_kind,
        tree_digest=work.part.structure.digest,
        parent=work.parent,
        files=tuple(sorted(files, key=lambda entry: entry.path)),
        metrics=finite_metrics(work.metrics),
        versions=versions(),
        pinned=work.pinned,
        elapsed_seconds=work.elapsed_seconds,
    )


def finite_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Metrics as plain numbers. NaN and infinity are left out; retention ranks a missing metric last.

    A metric that is not a number is left out and logged; it never fails the save.
    """
    plain = {}
    for name, value in metrics.items():
        try:
            number = float(cast("SupportsFloat", value))
        except (TypeError, ValueError, RuntimeError) as error:
            logger.warning("metric %r is not stored: %s", name, error)
            continue
        if math.isfinite(number):
            plain[name] = number
    return plain


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that wrote the checkpoint."""
    found = {"python": platform.python_version()}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
