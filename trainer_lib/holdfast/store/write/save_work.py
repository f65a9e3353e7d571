"""What one save is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.store.write.step_files import RankPart


@dataclass(frozen=True)
class SaveWork:
    """What is saved, and what goes into the manifest."""

    step: int
    part: RankPart
    metrics: Mapping[str, object]
    pinned: bool
    parent: str
    elapsed_seconds: float = 0.0
    metadata: bytes | None = None
