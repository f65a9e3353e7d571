"""TrainingJobs that must be refused: the rows of ``bad_manifests.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.cluster.manifests import Manifest, with_value, without

_TABLE: Final[dict[str, list[dict[str, Any]]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


@dataclass(frozen=True)
class Bad:
    """One wrong edit. ``edit`` holds the new value, or nothing if the field is removed."""

    id: str
    field: str
    edit: tuple[Any, ...]
    server: tuple[str, ...]
    model: tuple[str, ...]

    def applied_to(self, good: Manifest) -> Manifest:
        """A copy of ``good`` with this edit."""
        return with_value(good, self.field, self.edit[0]) if self.edit else without(good, self.field)


def _read(row: dict[str, Any]) -> Bad:
    edit = (row["value"],) if "value" in row else ()
    return Bad(row["id"], row["field"], edit, tuple(row["server"]), tuple(row.get("model", ())))


CREATED: Final = tuple(_read(row) for row in _TABLE["created"])
"""Refused when created."""

CHANGED: Final = tuple(_read(row) for row in _TABLE["changed"])
"""Refused when they replace the valid job."""
