"""Arrays in host memory: whether they are there, copies of those that are not, and digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
import xxhash

_PINNED: Final = "pinned_host"


def on_cpu(array: jax.Array) -> bool:
    """Whether numpy can read the array's memory."""
    device: Any = next(iter(array.sharding.device_set))
    return bool(device.platform == "cpu")


def copy_to_host(array: jax.Array) -> jax.Array:
    """A copy in pinned host memory, with the same sharding; the copy may still be running."""
    copy: jax.Array = jax.device_put(array, array.sharding.with_memory_kind(_PINNED))
    return copy


def digests_of(local: Mapping[str, Any]) -> dict[str, str]:
    """xxh3-64 of the bytes of each leaf, by path, in hexadecimal."""
    return {path: xxhash.xxh3_64_hexdigest(np.asarray(leaf).tobytes()) for path, leaf in local.items()}
