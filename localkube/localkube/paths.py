"""Where things live: module sources, per-user caches, and the registry of running clusters."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PACKAGE = "localkube"
_SOURCE_ROOT = Path(__file__).resolve().parents[1]

CONTROL_PLANE_MODULE = _SOURCE_ROOT / "controlplane"
HELM_MODULE = _SOURCE_ROOT / "helm"


def cache_root() -> Path:
    """Return the user's cache folder, kept between runs; everything in it is keyed by content and may be deleted."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "holdfast"


def registry_root() -> Path:
    """The folder with one entry per running cluster of this user. Created with mode 0700.

    Raises PermissionError if the folder belongs to somebody else: it would let them answer in a cluster's name.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    root = base / f"holdfast-localkube-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = root.stat().st_uid
    if owner != os.getuid():
        raise PermissionError(f"{root} belongs to user {owner}, not to this user ({os.getuid()}); remove it")
    return root
