"""The initial state of a run: every restore needs its shapes; its values are needed only without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax

from holdfast.state import nnx
from holdfast.state.weak_types import is_weak

PyTree = Any


class Initial:
    """The argument of ``restore``: a function that builds the state, or the state itself.

    A jitted function without arguments is compiled but not run, to find shapes and shardings, so no second state exists
    beside the restored one. The same holds for any function with ``shardings``. Any other function is run, and its result is
    freed before the restore.

    A state with NNX objects is stored as dictionaries of arrays; ``abstract`` has that form, and ``shardings`` may have it.
    """

    def __init__(self, source: Any, shardings: Any = None) -> None:
        self._build: Callable[[], PyTree]
        self._frame: PyTree = None  # with NNX objects: the objects to fill
        if not callable(source) or _is_state(source) or nnx.holds_objects(source):
            self._build, self._frame = lambda: source, source
            self.abstract = abstract_of(nnx.arrays_of(source))
        elif shardings is not None:
            self._frame = nnx.abstractly(source)
            self.abstract = _with_shardings(nnx.arrays_of(self._frame), shardings)
            placed = jax.tree_util.tree_map(lambda leaf: leaf.sharding, self.abstract)
            arrays = jax.jit(lambda: nnx.arrays_of(source()), out_shardings=placed)
            self._build = lambda: nnx.put(self._frame, arrays())
        else:
            self._inspect(source)

    def build(self) -> PyTree:
        """Build the state in the form that the program uses."""
        return self._build()

    def fill(self, arrays: PyTree, new: Collection[str] = ()) -> PyTree:
        """The state in the program's form, with the values ``arrays``; leaves at the paths ``new`` are built instead."""
        if new:
            # By path, because two calls may build trees that compare unequal, with an optimizer each for example.
            built = jax.tree_util.tree_leaves_with_path(nnx.arrays_of(self._build()))
            fresh = {
                path: leaf for path, leaf in ((jax.tree_util.keystr(key), leaf) for key, leaf in built) if path in new
            }
            arrays = jax.tree_util.tree_map_with_path(
                lambda key, value: fresh.get(jax.tree_util.keystr(key), value), arrays
            )
        return nnx.put(self._frame, arrays)

    def _inspect(self, source: Callable[[], PyTree]) -> None:
        self._build = source
        if hasattr(source, "lower") and not nnx.holds_objects(shapes := nnx.abstractly(source)):
            compiled = source.lower().compile()
            self._build = compiled
            self.abstract = _with_shardings(shapes, compiled.output_shardings)
            return
        built = source()
        self.abstract = abstract_of(nnx.arrays_of(built))
        if nnx.holds_objects(built):
            self._frame = nnx.put(built, self.abstract)


def abstract_of(state: PyTree) -> PyTree:
    """Shapes, dtypes and shardings of a state's arrays; other leaves as they are."""

    def leaf_of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return _struct(leaf, leaf.sharding)
        return leaf

    return jax.tree_util.tree_map(leaf_of, state)


def _is_state(source: object) -> bool:
    """Whether a callable is a state: pytree nodes such as module objects can be callable."""
    return not jax.tree_util.all_leaves([source])


def _with_shardings(shapes: PyTree, shardings: Any) -> PyTree:
    """``shardings``: a tree like ``shapes``, or one whose leaves apply to whole branches, or a single sharding for all."""

    def spread(sharding: Any, branch: PyTree) -> PyTree:
        return jax.tree_util.tree_map(lambda leaf: _struct(leaf, sharding), branch)

    is_leaf = lambda node: isinstance(node, jax.sharding.Sharding)  # noqa: E731
    return jax.tree_util.tree_map(spread, shardings, shapes, is_leaf=is_leaf)


def _struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    weak = is_weak(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)  # type: ignore[no-untyped-call]
