"""The record of a state's leaves that is stored beside the arrays. Needs no JAX, because the command line reads it too."""

from __future__ import annotations

import ast
import enum
import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from holdfast_contract import codec

STRUCTURE_FILE: Final = "STRUCTURE.json"
"""File in a step's folder, beside ``state/``; listed in the manifest."""


class LeafKind(enum.StrEnum):
    """The type of a leaf in the program."""

    ARRAY = "array"  # jax.Array
    KEY = "key"  # typed PRNG keys; dtype names the implementation
    NUMPY = "numpy"  # numpy array or scalar, equal on all ranks
    SCALAR = "scalar"  # Python bool, int, float, equal on all ranks


@dataclass(frozen=True)
class Leaf:
    """One leaf: its path in the tree, such as ``['params']['w']``, kind, shape in elements, and dtype.

    ``weak_type``: JAX promotes the array like a Python number. Leaves that differ in it alone are equal: a restore takes it
    from the checkpoint.
    """

    path: str
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = field(default=False, compare=False)

    def to_jsonable(self) -> dict[str, object]:
        """The stored form. Only weakly typed leaves have ``weak_type``, so records without any read as they always did."""
        stored: dict[str, object] = codec.to_jsonable(self)
        if not self.weak_type:
            del stored["weak_type"]
        return stored

    def __str__(self) -> str:
        return f"{self.kind.value} {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Structure:
    """All leaves in the order of the flattened tree."""

    leaves: tuple[Leaf, ...]

    def to_bytes(self) -> bytes:
        """The stored form, JSON with one leaf per line."""
        return self._stored

    @cached_property
    def _stored(self) -> bytes:
        lines = ",\n".join(json.dumps(leaf.to_jsonable()) for leaf in self.leaves)
        return f'{{"leaves": [\n{lines}\n]}}\n'.encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the stored form."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def from_bytes(data: bytes) -> Structure:
    """Read the stored form. Raises codec.CodecError."""
    return codec.decode(Structure, data)


_PATH_PART: Final = re.compile(
    r"""\.(?P<attribute>[^.\[]+)|\[<flat\ index\ (?P<flat>\d+)>\]|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]
    |\[(?P<plain>[^\]]*)\]""",
    re.VERBOSE,
)


def name_of(path: str) -> str:
    """The stored name of a leaf, in Orbax's spelling: ``.params['layers'][0]['w']`` is ``params.layers.0.w``."""
    return ".".join(parts_of(path))


def parts_of(path: str) -> list[str]:
    """The keys on the way to a leaf: ``.params['a.b'][0]`` is ``params``, ``a.b``, ``0``."""
    parts = []
    for found in _PATH_PART.finditer(path):
        quoted = found["quoted"]
        parts.append(str(ast.literal_eval(quoted)) if quoted else found["attribute"] or found["flat"] or found["plain"])
    return parts


def is_below(name: str, prefix: str) -> bool:
    """Whether a stored name is ``prefix`` or below it; every name is below ""."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")
