"""Checkpoints that a training run can rely on, on Kubernetes or anywhere else.

::

    import holdfast

    with holdfast.session() as run:
        state, data = run.restore(init_state, data)
        for step in run.steps(until=10_000):
            state, loss = train_step(state, next(data))
            run.commit(step, state, data=data, metrics={"loss": loss})

Importing this starts nothing, imports no JAX and touches no device.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, Final

from holdfast import errors
from holdfast.distributed.world import World
from holdfast.errors import (
    ConfigurationError,
    CoordinationLost,
    DamagedCheckpoint,
    ForeignRun,
    HoldfastError,
    NotFinished,
    NoValidCheckpoint,
    OwnershipError,
    PeerLeft,
    PeerLost,
    RanksDisagree,
    RequestFailed,
    RestoreError,
    RestoreForgotten,
    SaveError,
    SaveTimeout,
    StepsNotCommitted,
    StepsNotSaved,
    StorageError,
    StorageUnusable,
    StructureMismatch,
    Superseded,
    UnsupportedLeaf,
    WrongWorld,
)
from holdfast.policies.checkpoint_health import finite
from holdfast.policies.combinations import all_of, any_of
from holdfast.policies.keep_rules import KeepRule, keep, keep_all
from holdfast.policies.save_adaptive import adaptive
from holdfast.policies.save_rules import SavePolicy, at_steps, every_seconds, every_steps, only_at_end
from holdfast.policies.save_when_unstable import when_unstable
from holdfast.training.session import Session, session

if TYPE_CHECKING:
    from holdfast.catalog.listing import checkpoints
    from holdfast.catalog.loading import Loaded, load
    from holdfast.catalog.sealing import newest_sealed, seal, verify_sealed
    from holdfast.store.handle import SaveHandle
    from holdfast.training.checkpointer import Checkpointer

    __version__: str

__all__ = [
    "Checkpointer",
    "ConfigurationError",
    "CoordinationLost",
    "DamagedCheckpoint",
    "ForeignRun",
    "HoldfastError",
    "KeepRule",
    "Loaded",
    "NoValidCheckpoint",
    "NotFinished",
    "OwnershipError",
    "PeerLeft",
    "PeerLost",
    "RanksDisagree",
    "RequestFailed",
    "RestoreError",
    "RestoreForgotten",
    "SaveError",
    "SaveHandle",
    "SavePolicy",
    "SaveTimeout",
    "Session",
    "StepsNotCommitted",
    "StepsNotSaved",
    "StorageError",
    "StorageUnusable",
    "StructureMismatch",
    "Superseded",
    "UnsupportedLeaf",
    "World",
    "WrongWorld",
    "__version__",
    "adaptive",
    "all_of",
    "any_of",
    "at_steps",
    "checkpoints",
    "errors",
    "every_seconds",
    "every_steps",
    "finite",
    "keep",
    "keep_all",
    "load",
    "newest_sealed",
    "only_at_end",
    "seal",
    "session",
    "verify_sealed",
    "when_unstable",
]

_DISTRIBUTION: Final = "holdfast-training"
_ON_FIRST_USE: Final = {
    "Checkpointer": "training.checkpointer",
    "Loaded": "catalog.loading",
    "SaveHandle": "store.handle",
    "checkpoints": "catalog.listing",
    "load": "catalog.loading",
    "newest_sealed": "catalog.sealing",
    "seal": "catalog.sealing",
    "verify_sealed": "catalog.sealing",
}
"""Names whose modules are imported on first use, since they need NumPy or more."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version(_DISTRIBUTION)
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
