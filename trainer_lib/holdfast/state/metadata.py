"""The program's metadata beside its state: a JSON object in a file of the checkpoint, verified like every other file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_contract.keys import METADATA_FILE
from holdfast_contract.manifest import Manifest

MAX_BYTES: Final = 1024 * 1024
"""Limit of the JSON: metadata are notes, not data."""


def to_bytes(metadata: Mapping[str, Any] | None) -> bytes | None:
    """The stored form; None if there is nothing to store.

    Raises:
        TypeError: JSON does not represent the object without loss.
        ValueError: the JSON is longer than MAX_BYTES.
    """
    if not metadata:
        return None
    allowed = "a dictionary with string keys, of values that JSON keeps: strings, finite numbers, True, False, None, lists, dictionaries"
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
    """The metadata of the checkpoint at ``folder``, which must be verified already; empty if it has none. Raises OSError."""
    if METADATA_FILE not in {entry.path for entry in manifest.files}:
        return {}
    stored: dict[str, Any] = json.loads((folder / METADATA_FILE).read_bytes())
    return stored
