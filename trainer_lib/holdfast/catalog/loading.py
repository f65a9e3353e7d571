"""States loaded outside a session, for evaluation and inference and as the beginning of another run: nothing is written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.catalog.contents import contents_of, is_own
from holdfast.catalog.listing import CheckpointFolder, choose, is_step, one_place, require_valid, step_at, take_one
from holdfast.state import metadata
from holdfast.state.changes import Allowed, compare
from holdfast.state.leaves import Leaf, Structure, is_below, name_of
from holdfast.store.read.candidates import NEWEST, CheckpointChoice, Metric
from holdfast_contract.manifest import Manifest, Rejection
from holdfast_contract.runfolder import Found

PyTree = Any
_Read = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """A state and where it comes from. ``rejected``: what would have been chosen, had it not been damaged.

    ``new`` names the leaves that the checkpoint has not and that are as the caller gave them, ``dropped`` those left
    behind; both only as allowed.
    """

    state: PyTree
    attempt: int
    step: int
    metrics: Mapping[str, float]
    folder: Path
    manifest: Manifest
    rejected: tuple[Rejection, ...] = ()
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the program noted when it saved; empty if nothing. Raises OSError."""
        return metadata.read(self.folder, self.manifest)


def load(  # noqa: PLR0913  one call with a name for every choice, all but the path optional
    path: str | os.PathLike[str],
    *,
    run: str | None = None,
    step: int | None = None,
    best: Metric | None = None,
    parts: Sequence[str] | None = None,
    like: PyTree = None,
    new_leaves: Sequence[str] = (),
    dropped_leaves: Sequence[str] = (),
) -> Loaded:
    """A checkpoint's state, after every byte of it was compared with its manifest; the newest valid one by default.

    Without ``parts`` that is one reading, and the bytes handed out are those that were compared; but for sealed
    checkpoints of plain Orbax. Every process that calls this reads and verifies the whole checkpoint; in a training
    program use a session.

    Args:
        path: a checkpoint path, the folder of a run or attempt in it, the folder of an Orbax manager whose steps were
            sealed, or the folder of one step.
        run: which run below ``path``, if there are several.
        step: this step and no other, from the newest attempt that has it.
        best: ``("loss", "min")`` or ``("accuracy", "max")``: the best valid one by a metric given to ``commit``.
        parts: only these parts of the state, by stored names: ``("params",)``, ``("params.encoder", "step")``.
        like: a tree with the shapes, dtypes and shardings to fill, real or abstract, of ``parts`` alone if those are
            given. Its leaves are found by name, so a dictionary fits what was a dataclass. Without it: nested
            dictionaries by name, arrays on the default device.
        new_leaves: names in ``like`` that the checkpoint may lack; those leaves come back as they are in ``like``. A
            name stands for all below it, ``*`` for any characters.
        dropped_leaves: names in the checkpoint (within ``parts``) that ``like`` may lack.

    Raises:
        FileNotFoundError: no such path, run, step or metric.
        DamagedCheckpoint: the ``step`` that was asked for is damaged. NoValidCheckpoint: candidates exist, none is valid.
        StructureMismatch: names every leaf that is missing, superfluous or of another shape, dtype or kind.
        StorageError: storage did not answer, or denied access.
    """
    ask = _Ask(parts, like, Allowed(tuple(new_leaves), tuple(dropped_leaves)))
    found, filled, rejected = _taken(path, run, CheckpointChoice(step, best), ask)
    return Loaded(
        filled.state,
        found.ref.attempt,
        found.ref.step,
        dict(found.manifest.metrics),
        found.folder,
        found.manifest,
        rejected=rejected,
        new=filled.new,
        dropped=filled.dropped,
    )


@dataclass(frozen=True)
class _Filled:
    state: PyTree
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ask:
    """What is wanted of a checkpoint, see ``load``."""

    parts: Sequence[str] | None
    like: PyTree
    allowed: Allowed

    def __post_init__(self) -> None:
        if self.like is None and self.allowed != Allowed():
            raise ValueError("new_leaves, dropped_leaves: found without like, allowed: with the tree that differs")

    def take(self, place: CheckpointFolder, found: Found) -> _Filled:
        """Compare it with its manifest and fill the tree. Raises as ``load``."""
        in_one_reading = self.parts is None and is_own(found)
        if not in_one_reading:  # of a few leaves, or by Orbax: not the bytes that are compared
            require_valid(place, found, deep=True)
        contents = contents_of(found)
        stored = _within(contents.leaves, self.parts)
        read = partial(contents.read, compared=in_one_reading)
        if self.like is None:
            return _Filled(_nested(read, stored))
        return _filled(read, stored, self.like, self.allowed)


def _taken(
    path: str | os.PathLike[str], run: str | None, choice: CheckpointChoice, ask: _Ask
) -> tuple[Found, _Filled, tuple[Rejection, ...]]:
    if run is None and is_step(path):
        place, entry = step_at(path)
        if choice != NEWEST:
            raise ValueError(f"step, best: found one with the folder of a single step, {os.fspath(path)}")
        return *take_one(place, entry, partial(ask.take, place)), ()
    place = one_place(path, run=run)
    return choose(place, choice, partial(ask.take, place))


def _within(stored: Mapping[str, Leaf], parts: Sequence[str] | None) -> Mapping[str, Leaf]:
    if parts is None:
        return stored
    if isinstance(parts, str) or not parts:
        raise ValueError(f"parts: found {parts!r}, allowed: a sequence of names such as ('params',)")
    for part in parts:
        if not any(is_below(name, part) for name in stored):
            tops = sorted({name.split(".")[0] for name in stored})
            raise errors.StructureMismatch(
                part, expected="a part of this name", found="none", remedy=f"choose among {', '.join(tops):.500}"
            )
    return {name: leaf for name, leaf in stored.items() if any(is_below(name, part) for part in parts)}


def _nested(read: _Read, stored: Mapping[str, Leaf]) -> PyTree:
    from holdfast.catalog.leaf_values import abstract_leaf

    wanted = {name: abstract_leaf(leaf) for name, leaf in stored.items()}
    values = read(wanted)
    if set(values) == {""}:
        return values[""]
    tree: dict[str, Any] = {}
    for name in stored:
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = values[name]
    return tree


def _filled(read: _Read, stored: Mapping[str, Leaf], like: PyTree, allowed: Allowed) -> _Filled:
    import jax

    from holdfast.state.structure import structure_of

    paths, treedef = jax.tree_util.tree_flatten_with_path(like)
    here = {name_of(leaf.path): leaf for leaf in structure_of(like).leaves}
    # In a checkpoint a numpy array and a jax array of the same numbers are the same thing to whoever reads it.
    there = {name: _as_kind_of(here.get(name), leaf) for name, leaf in stored.items()}
    changed = compare(_by_name(there), _by_name(here), allowed)
    new = tuple(name for name in here if f".{name}" in changed.new)
    given = dict(zip(here, (value for _, value in paths), strict=True))
    _require_real(new, given)
    values = read({name: value for name, value in given.items() if name not in new})
    filled = [given[name] if name in new else values[name] for name in here]
    dropped = tuple(name for name in there if f".{name}" in changed.dropped)
    return _Filled(jax.tree_util.tree_unflatten(treedef, filled), new, dropped)


def _by_name(leaves: Mapping[str, Leaf]) -> Structure:
    return Structure(tuple(dataclasses.replace(leaf, path=f".{name}") for name, leaf in leaves.items()))


def _as_kind_of(wanted: Leaf | None, leaf: Leaf) -> Leaf:
    plain = {"array", "numpy"}
    if wanted is not None and {wanted.kind.value, leaf.kind.value} <= plain:
        return dataclasses.replace(leaf, kind=wanted.kind)
    return leaf


def _require_real(names: Iterable[str], given: Mapping[str, Any]) -> None:
    import jax

    for name in names:
        if isinstance(given[name], jax.ShapeDtypeStruct):
            raise errors.StructureMismatch(
                name,
                expected="its initial value in like, since it is new",
                found="no such leaf",
                remedy="give real arrays for new leaves, not only their shape",
            )
