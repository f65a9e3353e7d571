"""The places of files: Go modules, the user's cache, and the registry of running clusters."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_SOURCE_ROOT = Path(__file__).resolve().parents[1]

CONTROL_PLANE_MODULE = _SOURCE_ROOT / "controlplane"
HELM_MODULE = _SOURCE_ROOT / "helm"

CACHE_VARIABLE = "LOCALKUBE_CACHE"
"""Names the cache folder; by default it is `holdfast` in the user's folder of caches."""
# This repository's one cache, which also holds its uv. Another name would cost every user a build of minutes.
_CACHE_NAME = "holdfast"


def cache_root() -> Path:
    """The user's cache folder, kept between runs; everything in it is keyed by content and may be deleted."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / _CACHE_NAME


def registry_root() -> Path:
    """The folder with one entry per running cluster of this user; created with mode 0700 if it is missing.

    Raises PermissionError if the folder belongs to another user, who could then answer in a cluster's name.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    root = base / f"localkube-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = root.stat().st_uid
    if owner != os.getuid():
        raise PermissionError(f"{root} belongs to user {owner}, not to this user ({os.getuid()}); remove it")
    return root
