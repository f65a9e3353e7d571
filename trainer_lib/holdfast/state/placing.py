"""The placement of restored leaves on devices, and leaves without elements."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def is_empty(leaf: Any) -> bool:
    """Whether an array has no elements. Orbax refuses it, and the structure record holds all of it: its shape."""
    return getattr(leaf, "size", 1) == 0


def empty_like(leaf: Any) -> Any:
    """An array of a leaf's shape, which has no elements."""
    if isinstance(leaf, np.ndarray):
        return np.empty(leaf.shape, leaf.dtype)
    nothing = np.empty(leaf.shape, leaf.dtype)
    return jax.make_array_from_callback(leaf.shape, sharding_of(leaf), lambda index: nothing[index])


def sharding_of(leaf: Any) -> jax.sharding.Sharding:
    """The sharding of an array; without one of its own, this process's first device."""
    found: jax.sharding.Sharding | None = leaf.sharding
    return found or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def is_free(leaf: Any) -> bool:
    """Whether an array must be restored uncommitted.

    Committed to the default device, it could no longer be combined with arrays on several devices. Every step does that with
    an optimizer's counter that was made outside jit.
    """
    if jax.device_count() == 1:
        return False  # no difference, and it saves a copy
    if isinstance(leaf, jax.Array):
        return not leaf.committed
    config: Any = jax.config
    default = jax.sharding.SingleDeviceSharding(config.jax_default_device or jax.local_devices()[0])
    return leaf.sharding is None or bool(leaf.sharding == default)
