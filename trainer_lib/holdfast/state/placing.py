"""Where a restored leaf goes, and what comes back of one that has no elements."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def is_empty(leaf: Any) -> bool:
    """An array without elements: Orbax refuses it, and its shape in the structure record says all there is."""
    return getattr(leaf, "size", 1) == 0


def empty_like(leaf: Any) -> Any:
    """An array of a leaf's shape, which has no elements."""
    if isinstance(leaf, np.ndarray):
        return np.empty(leaf.shape, leaf.dtype)
    nothing = np.empty(leaf.shape, leaf.dtype)
    return jax.make_array_from_callback(leaf.shape, sharding_of(leaf), lambda index: nothing[index])


def sharding_of(leaf: Any) -> jax.sharding.Sharding:
    """Where an array goes; without a sharding of its own to this process's first device."""
    found: jax.sharding.Sharding | None = leaf.sharding
    return found or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def is_free(leaf: Any) -> bool:
    """Whether an array must come back uncommitted. Committed to the default device it could not be mixed any more with
    arrays on several devices, as an optimizer's counter that was made outside of jit is in every step.
    """
    if jax.device_count() == 1:
        return False  # makes no difference, and spares a copy
    if isinstance(leaf, jax.Array):
        return not leaf.committed
    config: Any = jax.config
    default = jax.sharding.SingleDeviceSharding(config.jax_default_device or jax.local_devices()[0])
    return leaf.sharding is None or bool(leaf.sharding == default)
