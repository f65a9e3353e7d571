"""One leaf in two forms: a number that a program starts with is an array after its first jitted step.

Python numbers, NumPy numbers and arrays without axes of one kind (bool, integer, float) are the same leaf. A restored leaf
has the form that was committed, with its dtype and its weak type, because the bits of the next step depend on both.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from holdfast.state.leaves import Leaf, LeafKind, Structure
from holdfast.state.structure import PyTree, describe
from holdfast.state.weak_types import weakly_typed

_PYTHON: Final[dict[str, Any]] = {"bool": False, "int": 0, "float": 0.0}
_FAMILIES: Final = {"bool": np.bool_, "int": np.integer, "float": np.floating}


def in_stored_form(abstract: PyTree, stored: Structure) -> PyTree:
    """``abstract`` with each leaf that the checkpoint has in another form replaced by an abstract leaf of that form.

    Args:
        abstract: a pytree with the shapes, dtypes and shardings to fill.
        stored: the structure in the checkpoint.
    """
    there = {leaf.path: leaf for leaf in stored.leaves}

    def formed(path: Any, value: Any) -> Any:
        name = jax.tree_util.keystr(path)
        leaf = there.get(name)
        if leaf is None or not _is_other_form(describe(name, value), leaf):
            return value
        return _abstract(leaf, value)

    return jax.tree_util.tree_map_with_path(formed, abstract)


def with_weak_types(state: PyTree, stored: Structure, *, without: Container[str] = ()) -> PyTree:
    """``state`` with the arrays weakly typed that were so when they were stored; leaves at the paths ``without`` stay."""
    weak = {leaf.path for leaf in stored.leaves if leaf.weak_type and leaf.path not in without}
    if not weak:
        return state
    return jax.tree_util.tree_map_with_path(
        lambda path, value: weakly_typed(value) if jax.tree_util.keystr(path) in weak else value, state
    )


def _is_other_form(here: Leaf, there: Leaf) -> bool:
    """Whether two leaves that are not equal are the same numbers in two forms: Python's, NumPy's, an array."""
    if here == there or here.shape != there.shape or LeafKind.KEY in {here.kind, there.kind}:
        return False
    if here.shape:
        return here.kind != there.kind and _jitted_dtype(here) == _jitted_dtype(there)
    if _takes_any_dtype(here) or _takes_any_dtype(there):
        return _family(here) is not None and _family(here) == _family(there)
    return here.kind != there.kind and _jitted_dtype(here) == _jitted_dtype(there)


def _takes_any_dtype(leaf: Leaf) -> bool:
    """Whether a computation gives the number any dtype of its kind: Python's numbers and weakly typed arrays."""
    return leaf.weak_type or leaf.kind is LeafKind.SCALAR


def _family(leaf: Leaf) -> str | None:
    if leaf.kind is LeafKind.SCALAR:
        return leaf.dtype if leaf.dtype in _FAMILIES else None
    dtype = jnp.dtype(leaf.dtype)
    return next((name for name, family in _FAMILIES.items() if jnp.issubdtype(dtype, family)), None)


def _jitted_dtype(leaf: Leaf) -> np.dtype[Any]:
    """The dtype that an array has in a jitted step: NumPy's float64 is float32 there unless JAX has 64 bits."""
    return np.dtype(jax.dtypes.canonicalize_dtype(jnp.dtype(leaf.dtype)))


def _abstract(leaf: Leaf, requested: Any) -> Any:
    if leaf.kind is LeafKind.SCALAR:
        return _PYTHON[leaf.dtype]
    dtype = jnp.dtype(leaf.dtype)
    if leaf.kind is LeafKind.NUMPY:
        return np.zeros(leaf.shape, dtype)[()]
    sharding = getattr(requested, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding, weak_type=leaf.weak_type)  # type: ignore[no-untyped-call]
