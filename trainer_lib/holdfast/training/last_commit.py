"""The last commit of a session, held until it is saved: what is needed to save it exactly when the loop is left early.

A state that is not donated to the next step lives until the next commit because of this, beside the state that replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

from holdfast.state import data_position, nnx

PyTree = Any

CHEAP_SECONDS: Final = 0.001
"""A data position is captured at every commit if that takes no longer; else only for saves."""
MEASURED_CAPTURES: Final = 3
"""So many captures are measured first; the fastest counts, for the first one may have more to do."""

_IMMUTABLE: Final = (jax.Array, bool, int, float, complex, str, bytes, np.generic)


class HeldState:
    """The state that a commit was given. Its containers may change afterwards, and so may what changes in place.

    Made at every commit, so it looks at no leaf before somebody asks.

    Args:
        state: any pytree.
        holds_objects: whether NNX objects are in it, which is slow to find out.
    """

    def __init__(self, state: PyTree, *, holds_objects: bool) -> None:
        self._holds_objects = holds_objects
        leaves, structure = ([], None) if holds_objects else jax.tree_util.tree_flatten(state)
        self._state, self._leaves, self._structure = state if holds_objects else None, leaves, structure

    def changes_in_place(self) -> bool:
        """Whether a later step may have changed the numbers themselves."""
        return self._holds_objects or not all(isinstance(leaf, _IMMUTABLE) for leaf in self._leaves)

    def is_deleted(self) -> bool:
        """Whether arrays of it were donated to a later computation."""
        leaves = jax.tree_util.tree_leaves(nnx.arrays_of(self._state)) if self._holds_objects else self._leaves
        return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)

    def tree(self) -> PyTree:
        """The state."""
        if self._holds_objects:
            return self._state
        return jax.tree_util.tree_unflatten(self._structure, self._leaves)


@dataclass(frozen=True)
class Commit:
    """What ``commit`` was given after ``step``. ``position``: of ``data`` then; None: not captured."""

    step: int
    state: HeldState
    data: Any
    position: bytes | None
    metrics: Mapping[str, Any]
    metadata: bytes | None

    def inexact(self, entered: int) -> str:
        """Why this cannot be saved exactly now that step ``entered`` was entered; "" if it can."""
        if self.state.is_deleted():
            return f"arrays of the state after step {self.step} were donated to a later computation"
        if entered == self.step:
            return ""
        if self.state.changes_in_place():
            return f"the state changes in place (Flax NNX objects or NumPy arrays), and step {entered} has begun"
        if self.data is not None and self.position is None:
            return (
                f"the data position after step {self.step} is not known: data.get_state() takes more than "
                f"{CHEAP_SECONDS * 1000:g} ms and is called for saves only"
            )
        return ""

    def present_position(self) -> bytes | None:
        """The data position to save. For a commit that is exact."""
        return data_position.capture(self.data) if self.position is None else self.position


class PositionCapture:
    """Captures the data position at commits, as long as that is cheap."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._measured = 0
        self._fastest_seconds = float("inf")

    def at_commit(self, data: Any) -> bytes | None:
        """The position of ``data`` now; None without data, or if it costs too much. Raises as ``data_position.capture``."""
        if data is None or (self._measured >= MEASURED_CAPTURES and self._fastest_seconds > CHEAP_SECONDS):
            return None
        began = self._clock()
        position = data_position.capture(data)
        self._fastest_seconds = min(self._fastest_seconds, self._clock() - began)
        self._measured += 1
        return position
