"""Output of the commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.catalog.listing import ListedCheckpoint


def print_json(value: Any) -> None:
    """Print a value as indented JSON, keys in the given order."""
    print(json.dumps(value, indent=1, allow_nan=False, default=str))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> None:
    """Print a table with columns as wide as needed.

    Args:
        header: titles of the columns.
        rows: cells, as many in each row as in the header.
        right: numbers of the columns to align right; the others are aligned left.
    """
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        print("  ".join(cells).rstrip())


def record_of(checkpoint: ListedCheckpoint, *, newest_valid: bool) -> dict[str, Any]:
    """A checkpoint as a record for ``--json``."""
    written = checkpoint.manifest
    return {
        "run": checkpoint.run,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "folder": str(checkpoint.folder),
        "bytes": checkpoint.bytes,
        "files": len(written.files) if written else 0,
        "metrics": checkpoint.metrics,
        "kept": bool(written and written.pinned),
        "status": checkpoint.status.value,
        "reason": checkpoint.reason,
        "newest_valid": newest_valid,
        "digest": checkpoint.digest,
        "parent": written.parent if written else "",
        "processes": written.process_count if written else 0,
        "versions": dict(written.versions) if written else {},
    }


def name_of(checkpoint: ListedCheckpoint) -> str:
    """The run's name, or the folder's name if there is no run."""
    return checkpoint.run or checkpoint.folder.parent.name


def size_text(count: int) -> str:
    """A size in bytes for people: three digits and a binary unit."""
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1000:
            break
        size, unit = size / 1024, bigger
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"


def metrics_text(metrics: dict[str, float]) -> str:
    """``loss=0.1234 accuracy=0.9``; "-" for none."""
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items()) or "-"
