"""The structure of a state without its values: the record beside the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from holdfast import errors
from holdfast.state.leaves import STRUCTURE_FILE, Leaf, LeafKind, Structure, from_bytes
from holdfast.state.storable import refusal
from holdfast.state.weak_types import is_weak

__all__ = [
    "STRUCTURE_FILE",
    "Leaf",
    "LeafKind",
    "PyTree",
    "Structure",
    "describe",
    "from_bytes",
    "is_key",
    "structure_of",
]

PyTree = Any

_SCALARS: Final = (bool, int, float)


def structure_of(state: PyTree) -> Structure:
    """Describe a state, real or abstract (ShapeDtypeStruct leaves).

    Raises:
        UnsupportedLeaf: a leaf is neither an array nor a number, or two leaves have the same stored name.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    described = tuple(describe(jax.tree_util.keystr(path), value) for path, value in leaves)
    _refuse_shared_names([jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves], described)
    return Structure(described)


def is_key(value: object) -> bool:
    """Whether a leaf, real or abstract, holds typed PRNG keys."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def describe(path: str, value: Any) -> Leaf:
    """The record of one leaf, real or abstract, at ``path``. Raises UnsupportedLeaf."""
    if is_key(value):
        if 0 in value.shape:
            raise errors.UnsupportedLeaf(path, found="an empty array of keys")
        return Leaf(path, LeafKind.KEY, tuple(value.shape), str(value.dtype))
    kind = _kind_of(value)
    found = type(value).__name__ if kind is None else refusal(value)
    if kind is None or found:
        raise errors.UnsupportedLeaf(path, found=found)
    if kind is LeafKind.SCALAR:
        return Leaf(path, kind, (), type(value).__name__)
    return Leaf(path, kind, tuple(value.shape), str(value.dtype), is_weak(value))


def _kind_of(value: Any) -> LeafKind | None:
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return LeafKind.ARRAY
    if isinstance(value, np.ndarray | np.generic) and _is_numeric(value.dtype):
        return LeafKind.NUMPY
    return LeafKind.SCALAR if isinstance(value, _SCALARS) else None


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether it is a plain number type or an extended one (bfloat16 and similar, whose numpy kind is 'V')."""
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))


def _refuse_shared_names(names: Sequence[str], leaves: Sequence[Leaf]) -> None:
    seen: dict[str, Leaf] = {}
    for name, leaf in zip(names, leaves, strict=True):
        stored = name.rstrip("/")  # names that differ in this alone are one to TensorStore
        if stored in seen:
            raise errors.UnsupportedLeaf(
                leaf.path,
                found=f"the stored name {name!r}, which {seen[stored].path} has too (a key contains '.' or ends with '/')",
            )
        seen[stored] = leaf
