"""Where Orbax 0.12 notes what a checkpoint's arrays are, and what it says there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE_FILE: Final = "_METADATA"
"""In the folder of every item that is a tree of arrays."""
SHARDING_FILE: Final = "_sharding"
ARRAY_METADATA_FOLDER: Final = "array_metadatas"
"""Made beforehand by rank 0: with Orbax's writer other ranks would poll for it every 250 ms."""
INDEX_FILE: Final = "manifest.ocdbt"
NODES_FOLDER: Final = "d"


def part_folder(process: int) -> str:
    """Where a process's data lies below the checkpoint."""
    return f"ocdbt.process_{process}"


def array_metadata_file(process: int) -> str:
    """Where a process's words about its arrays lie below the checkpoint."""
    return f"{ARRAY_METADATA_FOLDER}/process_{process}"


@dataclass(frozen=True)
class ArrayRecord:
    """What a process noted of an array. ``key_impl``: of random keys, whose data are stored; "" for others."""

    name: str
    chunk_shape: tuple[int, ...]
    key_impl: str


def array_records(file: Path) -> Iterator[ArrayRecord]:
    """Of a file ``array_metadatas/process_<i>``. Raises OSError; ValueError, KeyError if it is another."""
    for entry in json.loads(file.read_bytes())["array_metadatas"]:
        told = entry["array_metadata"]
        extended = told.get("ext_metadata") or {}
        yield ArrayRecord(told["param_name"], tuple(told["chunk_shape"]), str(extended.get("random_key_impl") or ""))


def value_types(item: Path) -> dict[str, str]:
    """By name, what Orbax noted of each value of an item: "jax.Array", "np.ndarray", "scalar" and more."""
    tree = json.loads((item / TREE_FILE).read_bytes())["tree_metadata"]
    return {
        ".".join(str(part["key"]) for part in entry["key_metadata"]): str(entry["value_metadata"]["value_type"])
        for entry in tree.values()
    }
