"""The record of a state's leaves beside the arrays, and its comparison. No JAX: command lines read it, too."""

from __future__ import annotations

import ast
import enum
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from holdfast_contract import codec

STRUCTURE_FILE: Final = "STRUCTURE.json"
"""In a step's folder, beside ``state/``; listed in the manifest."""


class LeafKind(enum.StrEnum):
    """How a leaf is kept in the program."""

    ARRAY = "array"  # jax.Array
    KEY = "key"  # typed PRNG keys; dtype names the implementation
    NUMPY = "numpy"  # numpy array or scalar, equal on all ranks
    SCALAR = "scalar"  # Python bool, int, float, equal on all ranks


@dataclass(frozen=True)
class Leaf:
    """One leaf: its path in the tree, e.g. ``['params']['w']``, and what it holds. ``shape`` counts elements."""

    path: str
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Structure:
    """All leaves in the order of the flattened tree."""

    leaves: tuple[Leaf, ...]

    def to_bytes(self) -> bytes:
        """The stored form, one leaf a line."""
        return self._stored

    @cached_property
    def _stored(self) -> bytes:
        lines = ",\n".join(json.dumps(codec.to_jsonable(leaf)) for leaf in self.leaves)
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
    """The stored name of a leaf, as Orbax spells it: ``.params['layers'][0]['w']`` is ``params.layers.0.w``."""
    parts = []
    for found in _PATH_PART.finditer(path):
        quoted = found["quoted"]
        parts.append(str(ast.literal_eval(quoted)) if quoted else found["attribute"] or found["flat"] or found["plain"])
    return ".".join(parts)


def is_below(name: str, prefix: str) -> bool:
    """Whether a stored name is ``prefix`` or lies below it; everything lies below ""."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")
