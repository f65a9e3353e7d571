"""Loading a state outside a session, for evaluation, inference, or as the start of another run. Nothing is written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.catalog.choosing import choose, read_one, require_valid
from holdfast.catalog.contents import contents_of, is_own
from holdfast.catalog.listing import CheckpointFolder, is_step, only_checkpoint_folder, step_at
from holdfast.state import metadata
from holdfast.state.changes import Allowed, compare
from holdfast.state.leaves import Leaf, Structure, is_below, name_of, parts_of
from holdfast.store.read.candidates import NEWEST, CheckpointChoice, Metric
from holdfast_contract.manifest import Manifest, Rejection
from holdfast_contract.runfolder import Found

PyTree = Any
_Read = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """A state and where it comes from. ``rejected``: checkpoints that would have been chosen if they were not damaged.

    ``new`` names the leaves that the checkpoint lacks, which are as the caller passed them. ``dropped`` names the leaves
    that were left out. Both only as allowed.
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
        """The metadata that the program saved; empty if there are none. Raises OSError."""
        return metadata.read(self.folder, self.manifest)


def load(  # noqa: PLR0913  one call; every argument but the path is an optional keyword
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
    """Load a checkpoint's state, the newest valid one by default, after comparing every byte with its manifest.

    Without ``parts``, the checkpoint is read once, and the returned bytes are those that were compared. Sealed checkpoints
    of plain Orbax, and ``parts``, take a second read. Every process that calls this reads and verifies the whole
    checkpoint; a training program should use a session.

    Args:
        path: a checkpoint path, the folder of a run or attempt in it, the folder of an Orbax manager whose steps were
            sealed, or the folder of one step.
        run: which run below ``path``, if there are several.
        step: this step and no other, from the newest attempt that has it.
        best: ``("loss", "min")`` or ``("accuracy", "max")``: the best valid one by a metric given to ``commit``.
        parts: only these parts of the state, by stored names: ``("params",)``, ``("params.encoder", "step")``.
        like: a pytree with the shapes, dtypes and shardings to fill, real or abstract; of ``parts`` alone if those are
            given. Leaves are matched by name, so a dictionary can fill in for a dataclass. Without it the result is
            nested dictionaries by name, with arrays on the default device.
        new_leaves: names in ``like`` that the checkpoint may lack; those leaves are returned as they are in ``like``. A
            name includes everything below it; ``*`` matches any characters.
        dropped_leaves: names in the checkpoint (within ``parts``) that ``like`` may lack.

    Raises:
        FileNotFoundError: no such path, run, step or metric.
        DamagedCheckpoint: the requested ``step`` is damaged.
        NoValidCheckpoint: there are checkpoints, and none is valid.
        StructureMismatch: names every leaf that is missing, unexpected, or of another shape, dtype or kind.
        StorageError: storage did not answer, or denied access.
    """
    request = _LoadRequest(parts, like, Allowed(tuple(new_leaves), tuple(dropped_leaves)))
    found, filled, rejected = _read(path, run, CheckpointChoice(step, best), request)
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
class _LoadRequest:
    """What to load of a checkpoint; see ``load``."""

    parts: Sequence[str] | None
    like: PyTree
    allowed: Allowed

    def __post_init__(self) -> None:
        if self.like is None and self.allowed != Allowed():
            raise ValueError("`like` is required with new_leaves and dropped_leaves but not set")

    def read(self, holder: CheckpointFolder, found: Found) -> _Filled:
        """Compare the checkpoint with its manifest and fill the tree. Raises as ``load``."""
        in_one_read = self.parts is None and is_own(found)
        if not in_one_read:  # a few leaves, or Orbax: the bytes are read again after the comparison
            require_valid(holder, found, deep=True)
        contents = contents_of(found)
        stored = _within(contents.leaves, self.parts)
        read = partial(contents.read, compared=in_one_read)
        if self.like is None:
            return _Filled(_nested(read, stored))
        return _filled(read, stored, self.like, self.allowed)


def _read(
    path: str | os.PathLike[str], run: str | None, choice: CheckpointChoice, request: _LoadRequest
) -> tuple[Found, _Filled, tuple[Rejection, ...]]:
    if run is None and is_step(path):
        holder, entry = step_at(path)
        if choice != NEWEST:
            raise ValueError(
                f"step, best: found one of them with the folder of a step, {os.fspath(path)}, allowed: neither"
            )
        return *read_one(holder, entry, partial(request.read, holder)), ()
    holder = only_checkpoint_folder(path, run=run)
    return choose(holder, choice, partial(request.read, holder))


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

    requested = {name: abstract_leaf(leaf) for name, leaf in stored.items()}
    values = read(requested)
    if set(values) == {""}:
        return values[""]
    tree: dict[str, Any] = {}
    for name, leaf in stored.items():
        *parents, last = _keys_of(name, leaf, stored)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = values[name]
    return tree


def _keys_of(name: str, leaf: Leaf, stored: Mapping[str, Leaf]) -> list[str]:
    """The keys on the way to a leaf. Plain Orbax stores only names: a dot is taken as a level unless a leaf is above it."""
    keys = parts_of(leaf.path)
    if leaf.path != f".{name}" and ".".join(keys) == name:
        return keys
    keys = name.split(".")
    return [name] if any(".".join(keys[:count]) in stored for count in range(1, len(keys))) else keys


def _filled(read: _Read, stored: Mapping[str, Leaf], like: PyTree, allowed: Allowed) -> _Filled:
    import jax

    from holdfast.state.structure import structure_of

    paths, treedef = jax.tree_util.tree_flatten_with_path(like)
    here = {name_of(leaf.path): leaf for leaf in structure_of(like).leaves}
    # A stored numpy array and a stored jax array with the same numbers are equivalent to a reader.
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


def _as_kind_of(requested: Leaf | None, leaf: Leaf) -> Leaf:
    plain = {"array", "numpy"}
    if requested is not None and {requested.kind.value, leaf.kind.value} <= plain:
        return dataclasses.replace(leaf, kind=requested.kind)
    return leaf


def _require_real(names: Iterable[str], given: Mapping[str, Any]) -> None:
    import jax

    for name in names:
        if isinstance(given[name], jax.ShapeDtypeStruct):
            raise errors.StructureMismatch(
                name,
                expected="an initial value in `like`, because it is new",
                found="no such leaf",
                remedy="pass real arrays for new leaves, not only their shapes",
            )
