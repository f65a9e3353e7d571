"""The small files of an Orbax checkpoint besides the arrays, as Orbax 0.12 writes them; and its zarr keys.

They describe the tree and how arrays were sharded. Orbax's own functions for them take longer per leaf than writing the leaf.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import jax

from holdfast.state.structure import PyTree
from holdfast.store.format.ocdbt.encode import IndexEntry
from holdfast.store.write.layout import ChunkPlacement, StateLayout, StoredLeaf, key_name

_SEQUENCE, _DICT = 1, 2  # Orbax's KeyType
_EMPTY_TYPES: Final = ((list, "List"), (dict, "Dict"))


def tree_metadata(state: PyTree, layout: StateLayout) -> bytes:
    """The file ``_METADATA``: every leaf and every node without children, by its path."""
    entries = {}
    stored = iter(layout.leaves)
    for path, node in jax.tree_util.tree_flatten_with_path(state, is_leaf=_has_no_children)[0]:
        leaf = None if _has_no_children(node) else next(stored)
        where = jax.tree_util.keystr(path)
        names = [key_name(key, where) for key in path]
        keys = [{"key": name, "key_type": _key_type(key)} for name, key in zip(names, path, strict=True)]
        entries[str(tuple(names))] = {"key_metadata": keys, "value_metadata": _value_metadata(node, leaf)}
    return json.dumps(
        {
            "tree_metadata": entries,
            "use_ocdbt": True,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
    ).encode()


def array_metadata(layout: StateLayout) -> bytes:
    """The file ``array_metadatas/process_<i>``: the chunk shapes of JAX arrays, and which of them are PRNG keys."""
    return json.dumps(
        {
            "array_metadatas": [
                {
                    "array_metadata": {
                        "param_name": leaf.name,
                        "write_shape": leaf.chunk_shape,
                        "chunk_shape": leaf.chunk_shape,
                        "ext_metadata": {"random_key_impl": leaf.key_impl} if leaf.key_impl else None,
                    }
                }
                for leaf in _arrays(layout)
            ]
        }
    ).encode()


def shardings(layout: StateLayout) -> bytes:
    """The file ``_sharding``: the shardings that Orbax can express, by name in URL-safe base64, as Orbax looks them up."""
    texts: dict[jax.sharding.Sharding | None, str | None] = {}
    found = {}
    for leaf in _arrays(layout):
        if leaf.sharding not in texts:
            texts[leaf.sharding] = _sharding(leaf.sharding)
        text = texts[leaf.sharding]
        if text is not None:
            found[base64.urlsafe_b64encode(leaf.name.encode()).decode()] = text
    return json.dumps(found, separators=(",", ":")).encode()


def index_entries(layout: StateLayout) -> Iterable[IndexEntry]:
    """Keys and values of zarr 2 arrays: the metadata of each array, and its chunks."""
    for leaf in layout.leaves:
        if leaf is not None:
            yield IndexEntry(_key(leaf, ".zarray"), _zarray(leaf))
    for chunk in layout.chunks:
        yield IndexEntry(
            _key(layout.stored(chunk.leaf), _chunk_name(chunk)), None, chunk.process, chunk.offset, chunk.nbytes
        )


def _arrays(layout: StateLayout) -> list[StoredLeaf]:
    return [leaf for leaf in layout.leaves if leaf is not None and leaf.value_type == "jax.Array"]


def _key(leaf: StoredLeaf, last: str) -> bytes:
    return (f"{leaf.name}/{last}" if leaf.name else last).encode()


def _chunk_name(chunk: ChunkPlacement) -> str:
    return ".".join(map(str, chunk.position)) or "0"


def _zarray(leaf: StoredLeaf) -> bytes:
    described = {
        "chunks": leaf.chunk_shape,
        "compressor": None,
        "dimension_separator": ".",
        "dtype": leaf.dtype,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": leaf.shape,
        "zarr_format": 2,
    }
    return json.dumps(described, separators=(",", ":")).encode()


def _value_metadata(node: Any, leaf: StoredLeaf | None) -> dict[str, Any]:
    if leaf is None:
        return {"value_type": _empty_type(node), "skip_deserialize": True}
    found: dict[str, Any] = {"value_type": leaf.value_type, "skip_deserialize": False}
    if leaf.value_type == "jax.Array":
        found["write_shape"] = leaf.chunk_shape
    return found


def _empty_type(node: Any) -> str:
    if isinstance(node, tuple) and not hasattr(node, "_fields"):
        return "Tuple"
    return next((name for kind, name in _EMPTY_TYPES if isinstance(node, kind)), "None")


def _has_no_children(node: Any) -> bool:
    found = jax.tree_util.default_registry.flatten_one_level(node)
    return found is not None and not list(found[0])


def _key_type(key: Any) -> int:
    sequences = (jax.tree_util.SequenceKey, jax.tree_util.FlattenedIndexKey)
    return _SEQUENCE if isinstance(key, sequences) else _DICT


def _sharding(sharding: jax.sharding.Sharding | None) -> str | None:
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        device = next(iter(sharding.device_set))
        return json.dumps({"sharding_type": "SingleDeviceSharding", "device_str": str(device)})
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh: Any = sharding.mesh
        return json.dumps(
            {
                "sharding_type": "NamedSharding",
                "shape": list(mesh.shape.values()),
                "axis_names": list(mesh.axis_names),
                "axis_types": [str(kind) for kind in mesh.axis_types],
                "partition_spec": tuple(sharding.spec),
                "device_mesh": {"mesh": _device_ids(mesh.devices.tolist())},
            }
        )
    return None


def _device_ids(devices: Any) -> Any:
    if isinstance(devices, Sequence):
        return [_device_ids(device) for device in devices]
    return {"id": devices.id}
