"""The difference between two checkpoints, leaf by leaf."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import errors
from holdfast.catalog import listing
from holdfast.catalog.contents import Contents, contents_of
from holdfast.state.leaves import Leaf
from holdfast_contract import codec
from holdfast_contract.runfolder import Found


@dataclass(frozen=True)
class Change:
    """A leaf whose kind, shape or dtype differs."""

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class CheckpointDifference:
    """How two checkpoints differ, by stored names of leaves.

    ``compared``: how many names both have. ``values`` maps each leaf whose bits differ to the greatest absolute difference
    of its numbers, or NaN if no element is a number on both sides; None if values were not compared.
    """

    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    changed: tuple[Change, ...]
    compared: int
    values: Mapping[str, float] | None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_first or self.only_second or self.changed or self.values)

    def to_jsonable(self) -> dict[str, Any]:
        """For programs; a difference that is not finite is None."""
        values = self.values
        plain = None if values is None else {k: v if math.isfinite(v) else None for k, v in values.items()}
        return {
            "same": self.same,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "changed": codec.to_jsonable(self.changed),
            "leaves_compared": self.compared,
            "max_abs_difference": plain,
        }

    def lines(self) -> Iterator[str]:
        """For people, one difference a line and a summary last."""
        yield from (f"- {name}: only in the first" for name in self.only_first)
        yield from (f"+ {name}: only in the second" for name in self.only_second)
        yield from (f"! {c.name}: {c.first} in the first, {c.second} in the second" for c in self.changed)
        for name, greatest in (self.values or {}).items():
            yield f"~ {name}: " + ("bits differ" if math.isnan(greatest) else f"max abs difference {greatest:.6g}")
        what = "structure" if self.values is None else "structure and values"
        yield f"{what} of {self.compared} common leaves compared: {'no difference' if self.same else 'they differ'}"


def compare(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, values: bool = True
) -> CheckpointDifference:
    """Compare two checkpoints.

    Args:
        first: the folder of a step.
        second: the folder of another step.
        values: verify every byte first, then compare every number; otherwise compare structures only.

    Raises:
        FileNotFoundError: a path is not the folder of a checkpoint.
        DamagedCheckpoint: a checkpoint may not be used.
    """
    both = [contents_of(_found(path, deep=values)) for path in (first, second)]
    one, two = (contents.leaves for contents in both)
    common = [name for name in one if name in two]
    changed = [Change(n, _text(one[n]), _text(two[n])) for n in common if _text(one[n]) != _text(two[n])]
    same = [name for name in common if _text(one[name]) == _text(two[name])]
    return CheckpointDifference(
        only_first=tuple(name for name in one if name not in two),
        only_second=tuple(name for name in two if name not in one),
        changed=tuple(changed),
        compared=len(common),
        values=_values(both, {name: one[name] for name in same}) if values else None,
    )


def _text(leaf: Leaf) -> str:
    return str(leaf)


def _found(path: str | os.PathLike[str], *, deep: bool) -> Found:
    holder, entry = listing.step_at(path)
    checked = holder.check(entry, deep=deep)
    if not checked.valid or not isinstance(entry, Found):
        raise errors.DamagedCheckpoint(checked.folder, reason=checked.reason)
    return entry


def _values(both: list[Contents], leaves: Mapping[str, Leaf]) -> dict[str, float]:
    from holdfast.catalog.leaf_values import batches, read_raw

    differing: dict[str, float] = {}
    for batch in batches(leaves):
        one, two = (read_raw(contents, batch) for contents in both)
        for name in batch:
            if one[name].tobytes() != two[name].tobytes():
                differing[name] = _greatest(one[name], two[name])
    return differing


def _greatest(one: Any, two: Any) -> float:
    """The greatest absolute difference where both are numbers; NaN if that is nowhere."""
    import numpy as np

    if one.dtype.kind == "b":
        return 1.0
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        difference = np.abs(one.astype(wide) - two.astype(wide))
    finite = difference[~np.isnan(difference)]
    return float(finite.max()) if finite.size else math.nan
