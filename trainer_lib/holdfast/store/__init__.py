"""The checkpoint store: a save is durable, sealed by a manifest and known to all ranks, or it does not exist.

The names below are imported on first use, so that modules that only read a run's folder need no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.state.changes import Allowed
    from holdfast.store.attempt_store import Store
    from holdfast.store.checkpoint_extras import CheckpointExtras
    from holdfast.store.handle import SaveHandle
    from holdfast.store.read.candidates import CheckpointChoice
    from holdfast.store.read.restored import Restored
    from holdfast.store.store_settings import UNPINNED, StoreSettings, Unpinned

__all__ = [
    "UNPINNED",
    "Allowed",
    "CheckpointChoice",
    "CheckpointExtras",
    "Restored",
    "SaveHandle",
    "Store",
    "StoreSettings",
    "Unpinned",
]

_MODULES: Final = {
    "Allowed": "holdfast.state.changes",
    "CheckpointChoice": "holdfast.store.read.candidates",
    "SaveHandle": "holdfast.store.handle",
    "Restored": "holdfast.store.read.restored",
    "UNPINNED": "holdfast.store.store_settings",
    "StoreSettings": "holdfast.store.store_settings",
    "Unpinned": "holdfast.store.store_settings",
    "CheckpointExtras": "holdfast.store.checkpoint_extras",
    "Store": "holdfast.store.attempt_store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
