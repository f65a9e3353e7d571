"""Compressed OCDBT manifests and nodes, as Orbax writes them: TensorStore decodes them, from bytes in memory."""

from __future__ import annotations

import urllib.parse
from typing import Any, Final

import tensorstore

from holdfast.store.format.ocdbt.decode import BTreeNode, Extent, NodeRef, NotUnderstoodError, Value

_MANIFEST: Final = "manifest.ocdbt"
_NODE: Final = "node"


def decode_manifest(data: bytes) -> NodeRef | None:
    """The root of the newest version, as ``decode.decode_manifest`` returns it. Raises NotUnderstoodError."""
    versions = _dumped(_MANIFEST, data)["versions"]
    root = versions[-1]["root"]
    return _node_ref(root["location"], "", b"") if "location" in root else None


def decode_node(data: bytes, ref: NodeRef) -> BTreeNode:
    """What a node holds, as ``decode.decode_node`` returns it. Raises NotUnderstoodError."""
    entries = _dumped(_NODE, data, f"btreenode::{_NODE}:0:{len(data)}")["entries"]
    if "location" in entries[0]:
        return BTreeNode((), tuple(_child(entry, ref) for entry in entries))
    return BTreeNode(tuple((ref.prefix + entry["key"], _value(entry, ref)) for entry in entries), ())


def _dumped(name: str, data: bytes, node: str | None = None) -> Any:
    try:
        store = tensorstore.KvStore.open({"driver": "memory"}).result()
        store.write(name, data).result()
        return tensorstore.ocdbt.dump(store, node).result()
    except ValueError as error:  # TensorStore raises it for every error
        raise NotUnderstoodError(str(error)) from error


def _child(entry: dict[str, Any], ref: NodeRef) -> NodeRef:
    return _node_ref(entry["location"], ref.base, ref.prefix + entry["subtree_common_prefix"])


def _value(entry: dict[str, Any], ref: NodeRef) -> Value:
    if "inline_value" in entry:
        return bytes(entry["inline_value"])
    return _located(entry["indirect_value"], ref.base)[1]


def _node_ref(location: str, transitive: str, prefix: bytes) -> NodeRef:
    base, extent = _located(location, transitive)
    return NodeRef(extent, base, prefix)


def _located(location: str, transitive: str) -> tuple[str, Extent]:
    """``<kind>:<base path>:<relative path>:<offset>:<length>``, the paths percent-encoded."""
    _, base, relative, offset, length = location.split(":")
    base = transitive + urllib.parse.unquote(base)
    return base, Extent(base + urllib.parse.unquote(relative), int(offset), int(length))
