"""The files in which Orbax 0.12 records what a checkpoint's arrays are, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE_FILE: Final = "_METADATA"
"""Present in the folder of every item that is a tree of arrays."""
SHARDING_FILE: Final = "_sharding"
ARRAY_METADATA_FOLDER: Final = "array_metadatas"
"""Rank 0 creates it in advance, because with Orbax's writer other ranks poll for it every 250 ms."""
INDEX_FILE: Final = "manifest.ocdbt"
NODES_FOLDER: Final = "d"


def part_folder(process: int) -> str:
    """Folder of a process's data, relative to the folder of the arrays."""
    return f"ocdbt.process_{process}"


def array_metadata_file(process: int) -> str:
    """File with a process's records of its arrays, relative to the folder of the arrays."""
    return f"{ARRAY_METADATA_FOLDER}/process_{process}"


@dataclass(frozen=True)
class ArrayRecord:
    """What a process recorded of an array. ``key_impl``: implementation of PRNG keys, whose data are stored; "" for others."""

    name: str
    chunk_shape: tuple[int, ...]
    key_impl: str


def array_records(file: Path) -> Iterator[ArrayRecord]:
    """The records in a file ``array_metadatas/process_<i>``. Raises OSError; ValueError or KeyError if it is another file."""
    for entry in json.loads(file.read_bytes())["array_metadatas"]:
        record = entry["array_metadata"]
        extended = record.get("ext_metadata") or {}
        yield ArrayRecord(
            record["param_name"], tuple(record["chunk_shape"]), str(extended.get("random_key_impl") or "")
        )


def value_types(item: Path) -> dict[str, str]:
    """By name, the type that Orbax recorded of each value of an item: "jax.Array", "np.ndarray", "scalar" and more."""
    tree = json.loads((item / TREE_FILE).read_bytes())["tree_metadata"]
    return {
        ".".join(str(part["key"]) for part in entry["key_metadata"]): str(entry["value_metadata"]["value_type"])
        for entry in tree.values()
    }
