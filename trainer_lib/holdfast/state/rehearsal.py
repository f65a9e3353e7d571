"""A restore rehearsed at a commit: could the same program restore this state? It compares records, and no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from holdfast.errors import UnsupportedLeaf
from holdfast.state.changes import NOTHING_ALLOWED, Allowed, differences
from holdfast.state.forms import in_stored_form
from holdfast.state.leaves import Structure
from holdfast.state.structure import PyTree, describe, structure_of


def refusal(asked: PyTree, committed: PyTree, allowed: Allowed = NOTHING_ALLOWED) -> str:
    """All reasons why a restart of the same program could not restore ``committed``, in one message; "" if there is none.

    Args:
        asked: the abstract state that ``restore`` was called with; it holds no leaf that cannot be stored.
        committed: the state to save, real or abstract.
        allowed: leaves that may differ, as ``restore`` was called.
    """
    reasons = refusals(asked, committed, allowed)
    if not reasons:
        return ""
    head = f"a restart could not restore this state, {len(reasons)} reason(s); build `init_state` as a step returns it:"
    return "\n".join((head, *reasons))


def refusals(asked: PyTree, committed: PyTree, allowed: Allowed = NOTHING_ALLOWED) -> tuple[str, ...]:
    """The reasons of ``refusal``, one for each leaf and difference. Args: see there."""
    unstorable = dict(_unstorable(committed))
    paths = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(committed)]
    stored = Structure(tuple(describe(path, leaf) for path, leaf in paths if path not in unstorable))
    requested = structure_of(in_stored_form(asked, stored))
    differing = {path: text for path, text in differences(stored, requested, allowed) if path not in unstorable}
    return (*unstorable.values(), *(f"{path}: {text}" for path, text in differing.items()))


def outline_of(state: PyTree) -> object:
    """A value that is equal for states of the same structure, kinds of leaves, shapes and dtypes. Cheap: for each save."""
    leaves, structure = jax.tree_util.tree_flatten(state)
    return structure, [(type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


def _unstorable(state: PyTree) -> Iterator[tuple[str, str]]:
    """(path, error) of each leaf that cannot be stored, or else of one whose name another has."""
    found = False
    for path, value in jax.tree_util.tree_leaves_with_path(state):
        try:
            describe(jax.tree_util.keystr(path), value)
        except UnsupportedLeaf as error:
            found = True
            yield error.leaf, str(error)
    if found:
        return
    try:
        structure_of(state)
    except UnsupportedLeaf as error:
        yield error.leaf, str(error)
