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
from typing import TYPE_CHECKING, Any, Final

from holdfast.distributed.world import World
from holdfast.policies.checkpoint_health import finite
from holdfast.policies.combinations import all_of, any_of
from holdfast.policies.keep_rules import keep, keep_all
from holdfast.policies.save_adaptive import adaptive
from holdfast.policies.save_rules import at_steps, every_seconds, every_steps, only_at_end
from holdfast.policies.save_when_unstable import when_unstable
from holdfast.training.session import session

if TYPE_CHECKING:
    from holdfast.catalog.listing import checkpoints
    from holdfast.catalog.loading import load
    from holdfast.catalog.sealing import newest_sealed, seal, verify_sealed
    from holdfast.training.checkpointer import Checkpointer

__all__ = [
    "Checkpointer",
    "World",
    "adaptive",
    "all_of",
    "any_of",
    "at_steps",
    "checkpoints",
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

_ON_FIRST_USE: Final = {
    "Checkpointer": "training.checkpointer",
    "checkpoints": "catalog.listing",
    "load": "catalog.loading",
    "newest_sealed": "catalog.sealing",
    "seal": "catalog.sealing",
    "verify_sealed": "catalog.sealing",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
