"""How the state to fill may differ from the saved one: only in leaves that the program names.

A pattern is a leaf's path with dots, such as ``model.head.kernel``, or any prefix that ends at a dot, such as ``model.head``.
``*`` matches any characters, as in ``model.*.bias``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast import errors
from holdfast.state.leaves import Leaf, Structure, name_of

_NOTHING: Final = "no such leaf"


@dataclass(frozen=True)
class Allowed:
    """Patterns of leaves that may differ.

    ``new``: absent in the checkpoint, so they start as the program builds them. ``dropped``: absent in the program, so their
    values are not restored. A leaf of another shape, dtype or kind is both.
    """

    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("new", "dropped"):
            patterns = getattr(self, name)
            if not isinstance(patterns, tuple) or not all(isinstance(p, str) and p for p in patterns):
                raise TypeError(f"{name} leaves: found {patterns!r}, allowed: paths like 'params.head', in a tuple")


NOTHING_ALLOWED: Final = Allowed()


@dataclass(frozen=True)
class Changed:
    """Paths of the leaves that differ as allowed."""

    new: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()


NOTHING_CHANGED: Final = Changed()


@dataclass(frozen=True)
class _Difference:
    path: str
    here: Leaf | None  # in the program
    there: Leaf | None  # in the checkpoint

    @property
    def is_new(self) -> bool:
        return self.here is not None

    @property
    def is_dropped(self) -> bool:
        return self.there is not None

    def missing_permissions(self, allowed: Allowed) -> tuple[str, ...]:
        """Which of the two permissions are missing."""
        lacks = []
        if self.is_new and not _is_named(self.path, allowed.new):
            lacks.append("new")
        if self.is_dropped and not _is_named(self.path, allowed.dropped):
            lacks.append("dropped")
        return tuple(lacks)


def compare(stored: Structure, requested: Structure, allowed: Allowed = NOTHING_ALLOWED) -> Changed:
    """Compare two structures.

    Args:
        stored: the structure in the checkpoint.
        requested: the structure of the state to fill.
        allowed: leaves that may differ.

    Returns:
        What differs, all of it allowed.

    Raises:
        StructureMismatch: a difference is not allowed; names the first one and lists the others.
    """
    differences = tuple(_differences(stored, requested))
    refused = [(d, lacks) for d in differences if (lacks := d.missing_permissions(allowed))]
    if refused:
        raise _mismatch(refused)
    new = frozenset(d.path for d in differences if d.is_new)
    return Changed(new, frozenset(d.path for d in differences if d.is_dropped))


def differences(
    stored: Structure, requested: Structure, allowed: Allowed = NOTHING_ALLOWED
) -> Iterator[tuple[str, str]]:
    """(path, text) of each difference that is not allowed. Arguments as for ``compare``."""
    for found in _differences(stored, requested):
        if found.missing_permissions(allowed):
            yield found.path, f"expected {found.here or _NOTHING}, found {found.there or _NOTHING}"


def _differences(stored: Structure, requested: Structure) -> Iterator[_Difference]:
    there = {leaf.path: leaf for leaf in stored.leaves}
    here = {leaf.path: leaf for leaf in requested.leaves}
    for path, leaf in here.items():
        if leaf != there.get(path):
            yield _Difference(path, leaf, there.get(path))
    for path, leaf in there.items():
        if path not in here:
            yield _Difference(path, None, leaf)


def _is_named(path: str, patterns: Sequence[str]) -> bool:
    name = name_of(path)
    return any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name, f"{p}.*") for p in patterns)


def _mismatch(refused: Sequence[tuple[_Difference, tuple[str, ...]]]) -> errors.StructureMismatch:
    first, lacks = refused[0]
    expected, found = str(first.here or _NOTHING), str(first.there or _NOTHING)
    name = name_of(first.path)
    asks = " and ".join(f"{kind}_leaves=[{name!r}]" for kind in lacks)
    if first.here and first.there:
        remedy = f"values are never cast, cut or padded; build it as it was saved, or start it anew with {asks}"
    else:
        remedy = f"build the state as the program that saved it did, or allow the difference with {asks}"
    return errors.StructureMismatch(
        first.path,
        expected=expected,
        found=found,
        remedy=remedy,
        others=tuple(f"{d.path}: expected {d.here or _NOTHING}, found {d.there or _NOTHING}" for d, _ in refused[1:]),
    )
