"""OCDBT's manifest and B+tree nodes as bytes: an index of values that are stored in separate files.

Format: TensorStore's documentation, "ocdbt Key-Value Store driver", section "Storage format"
(https://google.github.io/tensorstore/kvstore/ocdbt/). Nothing is compressed, because the index is small
compared with the values. The manifest's configuration begins with a field that the documentation omits: the kind of manifest,
0 for a single file.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

from holdfast.store.format.ocdbt.crc32c import crc32c

MANIFEST_MAGIC: Final = 0x0CDB3A2A
NODE_MAGIC: Final = 0x0CDB20DE
NODE_BYTES: Final = 4 * 1024 * 1024
"""Approximate maximum length of a node; readers decode whole nodes."""
_INLINE_BYTES: Final = 1024
"""The longest inline value, as the manifest declares it; the same as in Orbax's manifests."""
_VERSION_TREE_ARITY_LOG2: Final = 4
_NO_OFFSET: Final = 2**64 - 1
"""Offset and length of the root of an empty tree."""


class IndexEntry(NamedTuple):
    """A key and its value: ``inline``, otherwise ``length`` bytes at ``offset`` of the file number ``file``."""

    key: bytes
    inline: bytes | None = None
    file: int = 0
    offset: int = 0
    length: int = 0


@dataclass(frozen=True)
class Encoded:
    """An index ready to be written: ``nodes`` is the content of the file ``nodes_path``, ``manifest`` that of the manifest."""

    manifest: bytes
    nodes: bytes
    nodes_path: str


@dataclass(frozen=True)
class _Child:
    """A node as its parent sees it."""

    first_key: bytes
    offset: int
    length: int
    keys: int
    tree_bytes: int
    value_bytes: int


class Leaves:
    """The leaves of a tree, encoded except for the names of the files that they refer to.

    They can therefore be kept from save to save. ``entries`` have distinct keys, in any order.
    """

    def __init__(self, entries: Iterable[IndexEntry], *, node_bytes: int = NODE_BYTES) -> None:
        ordered = sorted(entries, key=lambda entry: entry.key)
        for left, right in itertools.pairwise(ordered):
            if left.key == right.key:
                raise ValueError(f"key: found {left.key!r} twice, allowed: once")
        self.digest = xxhash.xxh3_128_hexdigest(repr(ordered).encode())
        """Digest of the entries: equal where the same keys are stored at the same places."""
        self._node_bytes = node_bytes
        self._parts = [(part, _leaf_columns(part)) for part in _portions(ordered, node_bytes)]

    def encode(self, files: Sequence[str], nodes_path: str, *, commit_nanoseconds: int) -> Encoded:
        """The whole index.

        Args:
            files: paths of the data files by number, relative to the folder of the manifest.
            nodes_path: path of the file of nodes, relative to the same folder.
            commit_nanoseconds: time of the commit, since the epoch.
        """
        out = bytearray()
        table = _file_table(files)
        level = []
        for part, columns in self._parts:
            node = _node(0, table, len(part), columns)
            values = sum(entry.length for entry in part if entry.inline is None)
            level.append(_Child(part[0].key, len(out), len(node), len(part), len(node), values))
            out += node
        height = 0
        own_table = _file_table([nodes_path])
        while len(level) > 1:
            height += 1
            level = [_add_interior(out, height, own_table, part) for part in _grouped(level, self._node_bytes)]
        root = level[0] if level else None
        return Encoded(_manifest(root, height, nodes_path, commit_nanoseconds), bytes(out), nodes_path)


def _add_interior(out: bytearray, height: int, table: bytes, children: Sequence[_Child]) -> _Child:
    keys = [child.first_key for child in children]
    prefixes, suffixes = _key_columns(keys)
    columns = b"".join(
        (
            _varints(prefixes[1:]),
            _varints(len(suffix) for suffix in suffixes),
            _varints(0 for _ in children),  # children store whole keys
            b"".join(suffixes),
            _varints(0 for _ in children),  # all nodes are in one file
            _varints(child.offset for child in children),
            _varints(child.length for child in children),
            _varints(child.keys for child in children),
            _varints(child.tree_bytes for child in children),
            _varints(child.value_bytes for child in children),
        )
    )
    node = _node(height, table, len(children), columns)
    offset = len(out)
    out += node
    below = sum(child.tree_bytes for child in children)
    keys_below, values = sum(child.keys for child in children), sum(child.value_bytes for child in children)
    return _Child(keys[0], offset, len(node), keys_below, below + len(node), values)


def _leaf_columns(entries: Sequence[IndexEntry]) -> bytes:
    prefixes, suffixes = _key_columns([entry.key for entry in entries])
    outside = [entry for entry in entries if entry.inline is None]
    return b"".join(
        (
            _varints(prefixes[1:]),
            _varints(len(suffix) for suffix in suffixes),
            b"".join(suffixes),
            _varints(entry.length if entry.inline is None else len(entry.inline) for entry in entries),
            bytes(entry.inline is None for entry in entries),
            _varints(entry.file for entry in outside),
            _varints(entry.offset for entry in outside),
            b"".join(entry.inline for entry in entries if entry.inline is not None),
        )
    )


def _portions(entries: Sequence[IndexEntry], node_bytes: int) -> Iterator[Sequence[IndexEntry]]:
    start = size = 0
    for number, entry in enumerate(entries):
        size += len(entry.key) + len(entry.inline or b"") + 16
        if size >= node_bytes:
            yield entries[start : number + 1]
            start, size = number + 1, 0
    if start < len(entries):
        yield entries[start:]


def _grouped(level: Sequence[_Child], node_bytes: int) -> Iterator[Sequence[_Child]]:
    """Group children under parents, at least two to a parent, so that the tree has an end."""
    start = size = 0
    for number, child in enumerate(level):
        size += len(child.first_key) + 32
        if size >= node_bytes and number > start:
            yield level[start : number + 1]
            start, size = number + 1, 0
    if start < len(level):
        yield level[start:]


def _key_columns(keys: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """For each key, how many bytes it shares with the previous one, and the rest of it."""
    counts = [0, *(_shared(left, right) for left, right in itertools.pairwise(keys))]
    return counts, [key[count:] for key, count in zip(keys, counts, strict=True)]


def _shared(left: bytes, right: bytes) -> int:
    for count, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return count
    return min(len(left), len(right))


def _file_table(files: Sequence[str]) -> bytes:
    """Paths relative to the database, all without a base path for the nodes below."""
    prefixes, suffixes = _key_columns([file.encode() for file in files])
    return b"".join(
        (
            _varint(len(files)),
            # A common prefix may be of any length, because all base paths are empty.
            _varints(prefixes[1:]),
            _varints(len(suffix) for suffix in suffixes),
            _varints(0 for _ in files),
            b"".join(suffixes),
        )
    )


def _node(height: int, table: bytes, entries: int, columns: bytes) -> bytes:
    return _framed(NODE_MAGIC, b"".join((bytes([height]), table, _varint(entries), columns)))


def _manifest(root: _Child | None, height: int, nodes_path: str, commit_nanoseconds: int) -> bytes:
    """A manifest with one version, generation 1, and no older ones."""
    found = root or _Child(b"", _NO_OFFSET, _NO_OFFSET, 0, 0, 0)
    identity = xxhash.xxh3_128_digest(f"{nodes_path} {commit_nanoseconds}".encode())
    config = b"".join(
        (
            identity,
            _varint(0),
            _varint(_INLINE_BYTES),
            _varint(NODE_BYTES),
            bytes([_VERSION_TREE_ARITY_LOG2]),
            _varint(0),
        )
    )
    version = b"".join(
        (
            _varint(1),
            _varint(1),
            bytes([height]),
            _varints((0, found.offset, found.length, found.keys, found.tree_bytes, found.value_bytes)),
            struct.pack("<Q", commit_nanoseconds),
        )
    )
    return _framed(MANIFEST_MAGIC, config + _file_table([nodes_path if root else ""]) + version + _varint(0))


def _framed(magic: int, body: bytes) -> bytes:
    """Magic number, length, version 0, no compression, body, checksum."""
    head = struct.pack(">I", magic) + struct.pack("<Q", 4 + 8 + 2 + len(body) + 4) + b"\0\0"
    return head + body + struct.pack("<I", crc32c(head + body))


def _varints(values: Iterable[int]) -> bytes:
    return b"".join(map(_varint, values))


def _varint(value: int) -> bytes:
    """Unsigned LEB128: seven bits per byte, lowest first; the highest bit is set on all bytes but the last."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
