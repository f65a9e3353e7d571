"""A restore rehearsed at a commit: could the same program restore this state? It compares records, and no numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from holdfast.errors import UnsupportedLeaf
from holdfast.state.changes import NOTHING_ALLOWED, Allowed, differences
from holdfast.state.forms import in_stored_form
from holdfast.state.leaves import Leaf, Structure
from holdfast.state.structure import PyTree, describe, structure_of


@dataclass(frozen=True)
class Rehearsal:
    """How a committed state differs from the one that ``restore`` was asked for, one line for each leaf and difference.

    ``refused``: with these, a restart of the same program ends in an error. ``bridged``: a restore takes the form and the
    weak type from the checkpoint, and the sharding from the program.
    """

    refused: tuple[str, ...] = ()
    bridged: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All reasons to refuse the commit, in one message; "" if there is none."""
        if not self.refused:
            return ""
        return "\n".join((f"a restart could not restore this state, {len(self.refused)} reason(s):", *self.refused))


def rehearse(asked: PyTree, committed: PyTree, allowed: Allowed = NOTHING_ALLOWED) -> Rehearsal:
    """Compare what a restart will ask for with what is about to be stored.

    Args:
        asked: the abstract state that ``restore`` was called with; it holds no leaf that cannot be stored.
        committed: the state to save, real or abstract.
        allowed: leaves that may differ, as ``restore`` was called.
    """
    unstorable = dict(_unstorable(committed))
    paths = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(committed)]
    stored = Structure(tuple(describe(path, leaf) for path, leaf in paths if path not in unstorable))
    requested = structure_of(in_stored_form(asked, stored))
    differing = {path: text for path, text in differences(stored, requested, allowed) if path not in unstorable}
    refused = [*unstorable.values(), *(f"{path}: {text}" for path, text in differing.items())]
    return Rehearsal(tuple(refused), tuple(_bridged(asked, committed, stored, unstorable | differing)))


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


def _bridged(asked: PyTree, committed: PyTree, stored: Structure, refused: Mapping[str, str]) -> Iterator[str]:
    there = {leaf.path: leaf for leaf in stored.leaves}
    shardings = {jax.tree_util.keystr(p): _sharding(leaf) for p, leaf in jax.tree_util.tree_leaves_with_path(committed)}
    for key, value in jax.tree_util.tree_leaves_with_path(asked):
        path = jax.tree_util.keystr(key)
        if path not in there or path in refused:
            continue
        here = _described(describe(path, value)), _described(there[path])
        if here[0] != here[1]:
            yield f"{path}: {here[0]} at the restore, {here[1]} at the commit; the latter is restored"
        before, after = _sharding(value), shardings[path]
        if before and after and not before.is_equivalent_to(after, len(there[path].shape)):
            yield f"{path}: {before} at the restore, {after} at the commit; the former is restored"


def _described(leaf: Leaf) -> str:
    return f"weakly typed {leaf}" if leaf.weak_type else str(leaf)


def _sharding(leaf: Any) -> jax.sharding.Sharding | None:
    return leaf.sharding if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else None
