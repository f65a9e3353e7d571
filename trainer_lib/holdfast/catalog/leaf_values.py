"""Values of stored leaves by name, without a program that knows the state's structure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from holdfast.catalog.contents import Contents
from holdfast.state.leaves import Leaf, LeafKind
from holdfast.state.structure import is_key

BATCH_BYTES: Final = 256 * 1024 * 1024
"""Two checkpoints are compared this many bytes at a time, because both together may not fit into memory."""
_KEY_KINDS: Final = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
_SCALARS: Final[dict[str, Any]] = {"bool": False, "int": 0, "float": 0.0}


def abstract_leaf(leaf: Leaf) -> Any:
    """The abstract leaf that makes the reader return the leaf as it was saved; arrays are placed on the default device."""
    if leaf.kind is LeafKind.SCALAR:
        return _SCALARS[leaf.dtype]
    if leaf.kind is LeafKind.KEY:
        if leaf.dtype not in _KEY_KINDS:
            raise ValueError(f"{leaf.path}: found {leaf.dtype}, allowed: {', '.join(_KEY_KINDS)}; pass like=")
        count = math.prod(leaf.shape)
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl=_KEY_KINDS[leaf.dtype]), count)).update(
            shape=leaf.shape
        )
    if leaf.kind is LeafKind.NUMPY:
        return np.empty(leaf.shape, jnp.dtype(leaf.dtype))
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))  # type: ignore[no-untyped-call]


def read_raw(contents: Contents, leaves: Mapping[str, Leaf]) -> dict[str, npt.NDArray[Any]]:
    """The values of some leaves of a checkpoint, by name; of PRNG keys their data."""
    requested = {
        name: np.empty(leaf.shape, jnp.dtype(leaf.dtype)) if leaf.kind is LeafKind.ARRAY else abstract_leaf(leaf)
        for name, leaf in leaves.items()
    }
    return {name: _raw(value) for name, value in contents.read(requested).items()}


def batches(leaves: Mapping[str, Leaf]) -> Iterator[dict[str, Leaf]]:
    """The leaves in groups of at most BATCH_BYTES, unless one alone is larger."""
    group: dict[str, Leaf] = {}
    size = 0
    for name, leaf in leaves.items():
        width = jnp.dtype(leaf.dtype).itemsize if leaf.kind in {LeafKind.ARRAY, LeafKind.NUMPY} else 16
        need = math.prod(leaf.shape) * width
        if group and size + need > BATCH_BYTES:
            yield group
            group, size = {}, 0
        group[name] = leaf
        size += need
    if group:
        yield group


def _raw(value: Any) -> npt.NDArray[Any]:
    return np.asarray(jax.random.key_data(value) if is_key(value) else value)
