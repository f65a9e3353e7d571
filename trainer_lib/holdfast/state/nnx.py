"""Flax NNX: models and optimizers are stored as nested dictionaries of their arrays, and filled from them.

The graph definition (classes, hyperparameters, shared variables) is never stored. The program builds it, and the checkpoint
fills in the values. All objects of a state are split together, so a variable that two of them share is stored once, below
the first.

Only a program that uses Flax needs it installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from holdfast.errors import UnsupportedLeaf

PyTree = Any


def holds_objects(tree: PyTree) -> bool:
    """Whether NNX objects are in ``tree``: modules, optimizers, random number streams, single variables."""
    return "flax.nnx" in sys.modules and any(_is_object(leaf) for leaf in _leaves(tree))


def changes_in_place(tree: PyTree) -> bool:
    """Whether all of ``tree`` is in NNX objects, which change in place, so the tree passed once is always current."""
    return "flax.nnx" in sys.modules and all(_is_object(leaf) for leaf in _leaves(tree))


def arrays_of(tree: PyTree) -> PyTree:
    """``tree`` with nested dictionaries of arrays in place of NNX objects. Keys are strings.

    A single variable is ``{"value": array}``. A tree without NNX objects is returned as it is.

    Raises:
        UnsupportedLeaf: an object holds an array outside of a variable.
    """
    if not holds_objects(tree):
        return tree
    leaves, treedef = _flat(tree)
    states = iter(_dictionaries(_objects(leaves)))
    return jax.tree_util.tree_unflatten(treedef, [next(states) if _is_object(leaf) else leaf for leaf in leaves])


def put(tree: PyTree, arrays: PyTree) -> PyTree:
    """Set the variables of the NNX objects in ``tree``, in place, to ``arrays``, a tree as ``arrays_of`` returns it.

    Returns ``tree`` with its other leaves replaced. Arrays may be ShapeDtypeStructs; the objects are then abstract.
    """
    if not holds_objects(tree):
        return arrays
    from flax import nnx

    leaves, treedef = _flat(tree)
    values = treedef.flatten_up_to(arrays)
    objects = _objects(leaves)
    given = [value for leaf, value in zip(leaves, values, strict=True) if _is_object(leaf)]
    variables = nnx.to_flat_state(nnx.state(objects))
    changed = [(path, variable.replace(value=_value_at(given, path))) for path, variable in variables]
    nnx.update(objects, nnx.from_flat_state(changed))
    filled = [leaf if _is_object(leaf) else value for leaf, value in zip(leaves, values, strict=True)]
    return jax.tree_util.tree_unflatten(treedef, filled)


def abstractly(build: Callable[[], PyTree]) -> PyTree:
    """The result of ``build`` with ShapeDtypeStructs in place of arrays; nothing is computed."""
    if "flax.nnx" not in sys.modules:
        return jax.eval_shape(build)
    from flax import nnx

    return nnx.eval_shape(build)


def _is_object(leaf: object) -> bool:
    from flax import nnx

    return isinstance(leaf, nnx.Module | nnx.Optimizer | nnx.Pytree | nnx.Variable)


def _flat(tree: PyTree) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten(tree, is_leaf=_is_object)


def _leaves(tree: PyTree) -> list[Any]:
    return _flat(tree)[0]


def _objects(leaves: list[Any]) -> list[Any]:
    return [leaf for leaf in leaves if _is_object(leaf)]


def _dictionaries(objects: list[Any]) -> list[dict[str, Any]]:
    """The variables of each object, by path. A variable below an earlier object is not repeated."""
    from flax import nnx

    made: list[Any] = [{} for _ in objects]
    flat: Iterable[tuple[Any, Any]] = nnx.to_flat_state(nnx.state(objects))
    for (number, *path), held in flat:
        *folders, last = _names(path)
        if not isinstance(held, nnx.Variable):  # an abstract object cannot tell such an attribute from a constant
            where = f"{type(objects[number]).__name__}.{'.'.join(map(str, path))}"
            raise UnsupportedLeaf(
                where, found=f"{type(held).__name__} as a plain attribute: hold it in an nnx.Variable"
            )
        place = made[number]
        for name in folders:
            place = place.setdefault(name, {})
        place[last] = held.get_value()
    return made


def _value_at(dictionaries: list[Any], path: Sequence[Any]) -> Any:
    number, *rest = path
    place = dictionaries[number]
    for name in _names(rest):
        place = place[name]
    return place


def _names(path: Sequence[Any]) -> list[str]:
    return [str(part) for part in path] or ["value"]
