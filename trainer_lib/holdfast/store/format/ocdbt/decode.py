"""The OCDBT format: manifests and B+tree nodes from bytes. Standard library only, uncompressed bodies only.

Format: https://google.github.io/tensorstore/kvstore/ocdbt/ (section "Storage format"). The caller compares the bytes with
a 128-bit digest, before or after, so the format's own checksums (CRC-32C) are not checked here.

``tensorstore.ocdbt.dump`` reads the same bytes, and ``tensorstore_decode`` uses it for compressed indices. For our own
checkpoints, which are not compressed, this module stays, because every process of a restart waits for the difference
(``python benchmarks/ocdbt_index.py``, 2 shared cores, TensorStore 0.1.86, first reading in a fresh process with JAX
imported, median of 7): 0.3 ms here and 14 ms there for 16 leaves, 26 ms and 66 ms for 4,096. Importing TensorStore takes
10 of these milliseconds, 55 ms when its 68 MB library is not in the page cache, and 14 MiB of memory. Damage decides
nothing: of 6,000 damaged inputs neither decoder crashed, hung or raised anything but a refusal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_MANIFEST_MAGIC: Final = 0x0CDB3A2A
_NODE_MAGIC: Final = 0x0CDB20DE
_MISSING: Final = (1 << 64) - 1
_HEADER: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM_BYTES: Final = 4
_ZSTD: Final = 1


class NotUnderstoodError(ValueError):
    """The bytes are damaged, or use a part of the format that this module does not read and TensorStore may."""


class CompressedError(NotUnderstoodError):
    """A manifest or node whose body is compressed."""


@dataclass(frozen=True)
class Extent:
    """Bytes in a file, whose path is relative to the folder of ``manifest.ocdbt``."""

    path: str
    offset: int
    length: int


Value = bytes | Extent


@dataclass(frozen=True)
class NodeRef:
    """Where a node is stored. Its own references are relative to the path ``base``; all its keys begin with ``prefix``."""

    extent: Extent
    base: str
    prefix: bytes = b""


@dataclass(frozen=True)
class BTreeNode:
    """Either values by key, or children."""

    values: tuple[tuple[bytes, Value], ...]
    children: tuple[NodeRef, ...]


class _Cursor:
    """Reads fields one by one, never past the end."""

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self._data, self._at, self._stop = data, start, stop

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > self._stop:
            raise NotUnderstoodError(f"field: found {self._stop - self._at} bytes, allowed: {count} or more")
        found = self._data[self._at : end]
        self._at = end
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def uint64(self) -> int:
        return int(_LENGTH.unpack(self.take(8))[0])

    def varint(self) -> int:
        """Unsigned LEB128."""
        value = shift = 0
        while True:
            part = self.byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise NotUnderstoodError("number: found more than 64 bits, allowed: 64 or fewer")

    def varints(self, count: int) -> list[int]:
        self._require_room(count)
        return [self.varint() for _ in range(count)]

    def end(self) -> None:
        if self._at != self._stop:
            raise NotUnderstoodError(f"end: found {self._stop - self._at} bytes after the last field, allowed: none")

    def _require_room(self, count: int) -> None:
        """Every entry takes at least one byte, so a damaged count cannot exhaust memory."""
        if count > self._stop - self._at:
            raise NotUnderstoodError(
                f"count: found {count}, allowed: {self._stop - self._at} or fewer, the bytes that are left"
            )


def decode_manifest(data: bytes) -> NodeRef | None:
    """The root of the newest version; None if nothing was ever written. Raises NotUnderstoodError."""
    cursor = _body(data, _MANIFEST_MAGIC, "manifest")
    cursor.take(16)  # uuid
    if (kind := cursor.byte()) != 0:
        raise NotUnderstoodError(f"manifest kind: found {kind}, allowed: 0 (one file)")
    cursor.varints(2)  # max_inline_value_bytes, max_decoded_node_bytes
    cursor.byte()  # version_tree_arity_log2
    if (method := cursor.varint()) == _ZSTD:
        cursor.take(4)  # its level
    elif method != 0:
        raise NotUnderstoodError(f"compression method: found {method}, allowed: 0 | 1")
    files = _read_files(cursor, "")
    count = cursor.varint()
    if count == 0:
        raise NotUnderstoodError("versions: found none, allowed: 1 or more")
    cursor.varints(count)  # generation numbers
    cursor.take(count)  # heights of the roots, which the nodes repeat
    ids, offsets, lengths = (cursor.varints(count) for _ in range(3))
    if offsets[-1] == _MISSING:
        return None
    return _node_ref(files, ids[-1], offsets[-1], lengths[-1], b"")


def decode_node(data: bytes, ref: NodeRef) -> BTreeNode:
    """What a node holds, given its bytes and how it was reached. Raises NotUnderstoodError."""
    cursor = _body(data, _NODE_MAGIC, "node")
    height = cursor.byte()
    files = _read_files(cursor, ref.base)
    count = cursor.varint()
    if count == 0:
        raise NotUnderstoodError("entries: found none, allowed: 1 or more")
    shared = [0, *cursor.varints(count - 1)]
    suffixes = cursor.varints(count)
    subtree = cursor.varints(count) if height else []
    keys = _read_keys(cursor, shared, suffixes)
    node = _read_children(cursor, files, ref.prefix, keys, subtree) if height else _read_leaf(cursor, files, ref, keys)
    cursor.end()
    return node


def _body(data: bytes, magic: int, what: str) -> _Cursor:
    if len(data) < 18:
        raise NotUnderstoodError(f"{what}: found {len(data)} bytes, allowed: 18 or more")
    found = _HEADER.unpack_from(data)[0]
    if found != magic:
        raise NotUnderstoodError(f"{what}: magic number: found {found:#010x}, allowed: {magic:#010x}")
    length = _LENGTH.unpack_from(data, 4)[0]
    if length != len(data):
        raise NotUnderstoodError(f"{what}: found {len(data)} bytes, allowed: {length}, the length in its header")
    cursor = _Cursor(data, 12, len(data) - _CHECKSUM_BYTES)
    version, compression = cursor.varint(), cursor.varint()
    if version != 0:
        raise NotUnderstoodError(f"{what}: found version {version}, allowed: 0")
    if compression != 0:
        raise CompressedError(f"{what}: found compression {compression}, allowed here: 0")
    return cursor


def _read_files(cursor: _Cursor, transitive: str) -> list[tuple[str, str]]:
    """(base path, full path) of each file of a table."""
    count = cursor.varint()
    if count == 0:
        return []
    shared = [0, *cursor.varints(count - 1)]
    suffixes, bases = cursor.varints(count), cursor.varints(count)
    files, previous = [], b""
    for common, length, base in zip(shared, suffixes, bases, strict=True):
        if common > len(previous):
            raise NotUnderstoodError(
                f"path: found a shared prefix of {common} bytes, allowed: {len(previous)} or fewer"
            )
        previous = previous[:common] + cursor.take(length)
        files.append((_text(transitive, previous[:base]), _text(transitive, previous)))
    return files


def _text(transitive: str, path: bytes) -> str:
    try:
        return transitive + path.decode()
    except UnicodeDecodeError:
        raise NotUnderstoodError(f"path: found {path!r}, allowed: UTF-8") from None


def _read_keys(cursor: _Cursor, shared: list[int], suffixes: list[int]) -> list[bytes]:
    keys, previous = [], b""
    for common, length in zip(shared, suffixes, strict=True):
        if common > len(previous):
            raise NotUnderstoodError(f"key: found a shared prefix of {common} bytes, allowed: {len(previous)} or fewer")
        previous = previous[:common] + cursor.take(length)
        keys.append(previous)
    return keys


def _read_children(
    cursor: _Cursor, files: list[tuple[str, str]], prefix: bytes, keys: list[bytes], subtree: list[int]
) -> BTreeNode:
    count = len(keys)
    ids, offsets, lengths = (cursor.varints(count) for _ in range(3))
    for _ in range(3):
        cursor.varints(count)  # statistics: keys, tree bytes, value bytes
    found = zip(keys, subtree, ids, offsets, lengths, strict=True)
    children = (_node_ref(files, i, o, n, prefix + key[:common]) for key, common, i, o, n in found)
    return BTreeNode((), tuple(children))


def _read_leaf(cursor: _Cursor, files: list[tuple[str, str]], ref: NodeRef, keys: list[bytes]) -> BTreeNode:
    count = len(keys)
    lengths, kinds = cursor.varints(count), cursor.take(count)
    if any(kind > 1 for kind in kinds):
        raise NotUnderstoodError(f"value kind: found {max(kinds)}, allowed: 0 | 1")
    outside = sum(kinds)
    ids, offsets = iter(cursor.varints(outside)), iter(cursor.varints(outside))
    values: list[tuple[bytes, Value]] = []
    for key, length, kind in zip(keys, lengths, kinds, strict=True):
        if kind:
            values.append((ref.prefix + key, Extent(_file(files, next(ids))[1], next(offsets), length)))
        else:
            values.append((ref.prefix + key, cursor.take(length)))
    return BTreeNode(tuple(values), ())


def _node_ref(files: list[tuple[str, str]], number: int, offset: int, length: int, prefix: bytes) -> NodeRef:
    base, path = _file(files, number)
    return NodeRef(Extent(path, offset, length), base, prefix)


def _file(files: list[tuple[str, str]], number: int) -> tuple[str, str]:
    if number >= len(files):
        raise NotUnderstoodError(f"file: found number {number}, allowed: less than {len(files)}")
    return files[number]
