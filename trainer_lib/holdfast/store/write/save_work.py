"""The input of one save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.store.write.step_files import RankPart


@dataclass(frozen=True)
class SaveWork:
    """What this rank saves, and what goes into the manifest.

    ``parent``: digest of the checkpoint before it; "" for the first. ``elapsed_seconds``: time of training until then.
    """

    step: int
    part: RankPart
    metrics: Mapping[str, object]
    pinned: bool
    parent: str
    elapsed_seconds: float = 0.0
    metadata: bytes | None = None
