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

from holdfast.health import finite
from holdfast.keeping import keep, keep_all
from holdfast.policies import adaptive, all_of, any_of, every_seconds, every_steps, only_at_end
from holdfast.session import session
from holdfast.surroundings import World
from holdfast.triggers import at_steps, when_unstable

if TYPE_CHECKING:
    from holdfast.catalog import checkpoints
    from holdfast.checkpointer import Checkpointer
    from holdfast.loading import load
    from holdfast.sealing import newest_sealed, seal, verify_sealed

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
    "Checkpointer": "checkpointer",
    "checkpoints": "catalog",
    "load": "loading",
    "newest_sealed": "sealing",
    "seal": "sealing",
    "verify_sealed": "sealing",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
