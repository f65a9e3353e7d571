"""What may differ between the state that was saved and the one to fill: only what the program names.

A leaf is named by its path with dots, ``model.head.kernel``, and by every part of it that ends at a dot; ``*`` stands
for any characters: ``model.head`` and ``model.*.bias``.
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
    """Leaves that may be ``new`` (absent in the checkpoint, so they begin as the program builds them) and ``dropped``
    (absent in the program, so their numbers are left behind). A leaf of another shape, dtype or kind is both.
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
    """Paths of leaves that differ as allowed."""

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

    def missing_leave(self, allowed: Allowed) -> tuple[str, ...]:
        """Which of the two permissions it lacks."""
        lacks = []
        if self.is_new and not _is_named(self.path, allowed.new):
            lacks.append("new")
        if self.is_dropped and not _is_named(self.path, allowed.dropped):
            lacks.append("dropped")
        return tuple(lacks)


def compare(stored: Structure, wanted: Structure, allowed: Allowed = NOTHING_ALLOWED) -> Changed:
    """What differs, all of it allowed.

    Raises:
        StructureMismatch: names the first difference that is not, and lists all of them.
    """
    differences = tuple(_differences(stored, wanted))
    refused = [(d, lacks) for d in differences if (lacks := d.missing_leave(allowed))]
    if refused:
        raise _mismatch(refused)
    new = frozenset(d.path for d in differences if d.is_new)
    return Changed(new, frozenset(d.path for d in differences if d.is_dropped))


def _differences(stored: Structure, wanted: Structure) -> Iterator[_Difference]:
    there = {leaf.path: leaf for leaf in stored.leaves}
    here = {leaf.path: leaf for leaf in wanted.leaves}
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
        remedy = f"nothing is cast, cut or padded; build it as it was saved, or begin it anew with {asks}"
    else:
        remedy = f"build the state as the program did that saved it, or say that it is so on purpose with {asks}"
    return errors.StructureMismatch(
        first.path,
        expected=expected,
        found=found,
        remedy=remedy,
        others=tuple(f"{d.path}: expected {d.here or _NOTHING}, found {d.there or _NOTHING}" for d, _ in refused[1:]),
    )
