"""What a program notes beside its state: a JSON object in a file of the checkpoint, guarded like every other file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_contract.keys import METADATA_FILE
from holdfast_contract.manifest import Manifest

MAX_BYTES: Final = 1024 * 1024
"""Of the JSON: a note, not a place for data."""


def to_bytes(metadata: Mapping[str, Any] | None) -> bytes | None:
    """What is stored; None if there is nothing to store.

    Raises:
        TypeError: not an object that JSON keeps as it is. ValueError: more than MAX_BYTES.
    """
    if not metadata:
        return None
    allowed = "a dictionary by text of what JSON keeps: text, numbers but NaN, True, False, None, lists, dictionaries"
    try:
        text = json.dumps(dict(metadata), allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata: found {metadata!r:.200} ({error}), allowed: {allowed}") from None
    if json.loads(text) != dict(metadata):
        raise TypeError(f"metadata: found {metadata!r:.200}, which JSON changes; allowed: {allowed}")
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"metadata: found {len(data):,} bytes of JSON, allowed: {MAX_BYTES:,}")
    return data


def read(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """What was noted in the checkpoint at ``folder``, which was verified before; empty if nothing was. Raises OSError."""
    if METADATA_FILE not in {entry.path for entry in manifest.files}:
        return {}
    noted: dict[str, Any] = json.loads((folder / METADATA_FILE).read_bytes())
    return noted
