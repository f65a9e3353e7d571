"""All keys of an OCDBT store, with their values or where the values are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.store.format.ocdbt import decode
from holdfast.store.format.ocdbt.decode import BTreeNode, CompressedError, Extent, NodeRef, NotUnderstoodError, Value

MANIFEST: Final = "manifest.ocdbt"
_DEEPEST: Final = 16
"""A B+tree of this height has more keys than any state has leaves; a deeper one is damaged and might never end."""

ReadBytes = Callable[[str, int, int | None], bytes]
"""(path relative to the store's folder, offset, length or None for all of the file) to bytes."""


def read_index(read: ReadBytes) -> dict[str, Value]:
    """All keys of the newest version. Raises NotUnderstoodError, and what ``read`` raises."""
    root = _manifest(read(MANIFEST, 0, None))
    values: dict[str, Value] = {}
    level = [] if root is None else [root]
    for _ in range(_DEEPEST):
        nodes = [_node(read(ref.extent.path, ref.extent.offset, ref.extent.length), ref) for ref in level]
        for node in nodes:
            values.update((_name(key), value) for key, value in node.values)
        level = [child for node in nodes for child in node.children]
        if not level:
            return values
    raise NotUnderstoodError(f"levels: found more than {_DEEPEST}, allowed: {_DEEPEST} or fewer")


def _manifest(data: bytes) -> NodeRef | None:
    try:
        return decode.decode_manifest(data)
    except CompressedError:
        from holdfast.store.format.ocdbt import tensorstore_decode

        return tensorstore_decode.decode_manifest(data)


def _node(data: bytes, ref: NodeRef) -> BTreeNode:
    try:
        return decode.decode_node(data, ref)
    except CompressedError:
        from holdfast.store.format.ocdbt import tensorstore_decode

        return tensorstore_decode.decode_node(data, ref)


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise NotUnderstoodError(f"key: found {key!r}, allowed: UTF-8") from None


__all__ = ["Extent", "NotUnderstoodError", "ReadBytes", "Value", "read_index"]
