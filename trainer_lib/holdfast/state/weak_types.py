"""Weak types, which JAX gives to arrays made of Python numbers: they decide the dtype of the next result, so its bits."""

from __future__ import annotations

from typing import Any, cast

import jax

from holdfast.installed import require_checked


def is_weak(value: object) -> bool:
    """Whether an array, real or abstract, is weakly typed."""
    return bool(getattr(value, "weak_type", False))


def weakly_typed(array: jax.Array) -> jax.Array:
    """``array`` with a weak type, of the same buffers; nothing is copied or computed.

    It uses a private part of JAX, because JAX publishes no way to make a weakly typed array of given values, dtype and
    sharding.

    Raises:
        ImportError: the installed JAX was not checked with this release.
    """
    if is_weak(array):
        return array
    require_checked("jax")
    from jax._src.array import ArrayImpl

    aval = cast("Any", array).aval.update(weak_type=True)
    buffers: Any = [shard.data for shard in array.addressable_shards]
    return ArrayImpl(aval, array.sharding, buffers, committed=array.committed)
