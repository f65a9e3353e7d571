"""States of drawn shapes, dtypes and shardings; saved by our writer, read by plain Orbax and by the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from orbax.checkpoint import v1 as orbax_v1

from holdfast.distributed.coordination import Coordination
from holdfast.state.structure import is_key
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.format import fs
from holdfast.store.store_settings import WriterName
from tests.support.storage.states import bits, store_at

JAX_DTYPES = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"),
    *("float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
NUMPY_DTYPES = (*JAX_DTYPES, "int64", "uint64", "float64", "complex128")
SPLITS: tuple[Any, ...] = (
    "default",  # on the default device, as an array made outside of jit
    (),
    ("a",),
    ("b",),
    (None, "b"),
    ("b", "a"),
    (("a", "b"),),
    (None, ("b", "a")),
)


class Drawn(NamedTuple):
    """A leaf: what it is, its dtype, its shape, and over which axes of the mesh it is split."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    split: Any


def build(drawn: Mapping[str, Drawn], seed: int) -> dict[str, Any]:
    """The state, with numbers of random bits that depend on ``seed`` alone."""
    random = np.random.default_rng(seed)
    leaves = {name: _leaf(leaf, random) for name, leaf in drawn.items()}
    return {"drawn": leaves, "pair": Pair([jnp.float32(seed)], ()), "nothing": None, "none": {}}


class Pair(NamedTuple):
    left: Any
    right: Any


def save(shared: Coordination, root: Path, attempt: int, drawn: Mapping[str, Drawn], writer: WriterName) -> str:
    """Save it as step 1; who wrote it."""
    store = store_at(
        root, attempt, shared=shared, settings=StoreSettings(save_seconds=90, writer=writer, check_saves=True)
    )
    store.save(1, build(drawn, attempt)).result(100)
    store.close()
    return writer_of(root / f"{attempt}/1/state")


def writer_of(folder: Path) -> str:
    """Only Orbax writes an index of each process's part."""
    return "orbax" if (folder / "ocdbt.process_0/manifest.ocdbt").exists() else "direct"


def restore(shared: Coordination, root: Path, attempt: int, drawn: Mapping[str, Drawn]) -> dict[str, list[str]]:
    """Which leaves of attempt 1's state do not come back to the bit, by reader."""
    expected = build(drawn, 1)
    store = store_at(root, attempt, shared=shared)
    restored = store.restore(UNPINNED, build(drawn, 0))
    store.close()
    assert restored is not None
    different = {"store": [a[0] for a, b in zip(bits(restored.state), bits(expected), strict=True) if a != b]}
    if shared.process_count == 1:
        different |= read_plainly(root / "1/1/state", expected)
    return different


def read_plainly(folder: Path, expected: Any, **arguments: Any) -> dict[str, list[str]]:
    """Which leaves Orbax's readers do not find as expected."""
    found = {
        "PyTreeCheckpointer": ocp.PyTreeCheckpointer().restore(folder),
        "StandardCheckpointer": ocp.StandardCheckpointer().restore(folder, **arguments),
        "v1": orbax_v1.load(folder),
    }
    return {reader: _different(dict(_numbers(tree)), dict(_numbers(expected))) for reader, tree in found.items()}


def _different(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*found, *expected} if not _same(found.get(name), expected.get(name)))


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.generic) and isinstance(found, bool | int | float):
        return bool(expected == found)  # a numpy scalar comes back as a Python number
    one, other = np.asarray(found), np.asarray(expected)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def files_of(folder: Path) -> dict[str, Any]:
    """What the small files and the index say, but for how arrays are cut and where values lie."""
    tree = json.loads((folder / "_METADATA").read_bytes())
    for entry in tree["tree_metadata"].values():
        if "write_shape" in entry["value_metadata"]:
            entry["value_metadata"]["write_shape"] = "cut"
    arrays = json.loads((folder / "array_metadatas/process_0").read_bytes())["array_metadatas"]
    metadata = {a["array_metadata"]["param_name"]: a["array_metadata"]["ext_metadata"] for a in arrays}
    sharding = {k: json.loads(v) for k, v in json.loads((folder / "_sharding").read_bytes()).items()}
    index = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    keys = [key for key in index.list().result() if key.endswith(b".zarray")]
    described = {key: json.loads(index.read(key).result().value) | {"chunks": "cut"} for key in keys}
    return {"tree": tree, "arrays": metadata, "sharding": sharding, "described": described}


def bytes_by_process(shared: Coordination, root: Path, mibibytes: int) -> list[int]:
    """What each process writes of a state that is replicated over all."""
    values = np.zeros((mibibytes, 1 << 18), np.float32)
    state = {f"w{number}": _replicated(value) for number, value in enumerate(values)}
    store = store_at(root, 1, shared=shared)
    store.save(1, state).result(30)
    store.close()
    return [
        sum(p.stat().st_size for p in (root / f"1/1/state/ocdbt.process_{process}/d").iterdir())
        for process in range(shared.process_count)
    ]


def save_altered(shared: Coordination, root: Path, writer: WriterName) -> str:
    """Once process 1 has written its half of ``w``, a bit of it changes; what the save says.

    Orbax writes the half in two chunks, one for each device, in any order.
    """
    settings = StoreSettings(save_seconds=30, writer=writer, check_saves=True)
    store = store_at(root, 1, shared=shared, settings=settings)
    chunk = np.arange(4096, 6144, dtype=np.float32).tobytes()

    def hook(point: str, path: Path) -> None:
        if point == "after:sync-file" and "ocdbt.process_1" in str(path):
            path.write_bytes(path.read_bytes().replace(chunk, bytes([chunk[0] ^ 1]) + chunk[1:]))

    fs.set_fault_hook(hook)
    try:
        store.save(1, {"w": _split(np.arange(8192, dtype=np.float32), "a")}).result(30)
    except Exception as error:
        return str(error)
    finally:
        fs.set_fault_hook(None)
    return ""


def save_other_shapes(shared: Coordination, root: Path) -> str:
    """Process 1 has an array of another shape."""
    store = store_at(root, 1, shared=shared)
    try:
        store.save(1, {"w": np.zeros(3 + shared.process_index)}).result(30)
    except Exception as error:
        return str(error)
    return ""


def _numbers(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        value = jax.random.key_data(leaf) if is_key(leaf) else leaf
        if np.size(value):
            yield jax.tree_util.keystr(path, simple=True, separator="."), value


def _leaf(drawn: Drawn, random: np.random.Generator) -> Any:
    if drawn.kind == "key":
        return _placed(lambda: jax.random.split(jax.random.key(int(random.integers(99))), drawn.shape), drawn)
    if drawn.kind == "scalar":
        return {"bool": bool, "int64": int}.get(drawn.dtype, float)(random.integers(-5, 5))
    dtype = dtype_of(drawn.dtype)
    values = random.bytes(int(np.prod(drawn.shape, dtype=int)) * dtype.itemsize)
    if drawn.dtype == "bool":
        values = bytes(octet & 1 for octet in values)
    array = np.frombuffer(values, dtype).reshape(drawn.shape)
    if drawn.kind == "numpy" and not drawn.shape:
        return np.asarray(random.integers(2)).astype(dtype)[()]  # Orbax makes it a Python number: no odd NaN survives
    if drawn.kind == "numpy":
        return np.asfortranarray(array)
    return _placed(lambda: array, drawn)


def _placed(make: Any, drawn: Drawn) -> Any:
    if drawn.split == "default":
        return jnp.asarray(make())
    sharding = _sharding(drawn.split if _fits(drawn) else ())
    made = make()
    if isinstance(made, np.ndarray):
        return jax.make_array_from_callback(made.shape, sharding, lambda index: made[index])
    return jax.jit(lambda keys: keys, out_shardings=sharding)(made)


def _replicated(value: Any) -> jax.Array:
    return _split(value)


def _split(value: Any, *axes: Any) -> jax.Array:
    return jax.make_array_from_callback(value.shape, _sharding(axes), lambda index: value[index])


def _sharding(split: Any) -> jax.sharding.NamedSharding:
    devices = np.array(jax.devices()).reshape(2, -1)
    spec: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("a", "b")), spec(*split))


def _fits(drawn: Drawn) -> bool:
    count = len(jax.devices())
    sizes = {"a": 2, "b": count // 2, None: 1}
    if len(drawn.split) > len(drawn.shape):
        return False
    parts = [count if isinstance(axis, tuple) else sizes[axis] for axis in drawn.split]
    return all(size % part == 0 for size, part in zip(drawn.shape, parts, strict=False))


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))
