"""Training states to save, stores to save them with, and bits to compare. Imported by tests and by their processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from holdfast.distributed import coordination
from holdfast.policies.keep_rules import KeepRule
from holdfast.state.structure import is_key
from holdfast.store import Store, StoreSettings
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder

OWNER = Owner(job_uid="uid-1", namespace="team", name="job", attempt=0)
QUICK = StoreSettings(save_seconds=30, claim_seconds=20, restore_seconds=30, transient_seconds=0.5, visible_seconds=1)


def _over_all(*axes: str) -> jax.sharding.NamedSharding:
    spec: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("x",)), spec(*axes))


def state_of(seed: int) -> dict[str, Any]:
    """One of every kind of leaf, each depending on ``seed``; sharded and replicated arrays over the whole world."""
    split = _over_all("x")
    whole = _over_all()

    def made(build: Callable[[], jax.Array], sharding: jax.sharding.Sharding) -> jax.Array:
        array: jax.Array = jax.jit(build, out_shardings=sharding)()
        return array

    weights = made(lambda: jnp.arange(64.0).reshape(8, 8) + seed, split)
    return {
        "params": {"w": weights, "b": made(lambda: jnp.full((300,), seed, jnp.bfloat16), whole)},
        "opt": optax.adam(1e-3).init({"w": weights}),
        "key": made(lambda: jax.random.key(seed), whole),
        "keys": made(lambda: jax.random.split(jax.random.key(seed, impl="rbg"), 8), split),
        "raw_key": made(lambda: jax.random.PRNGKey(seed), whole),
        "local_key": jax.random.key(seed + 1),
        "step": seed,
        "scale": 0.1 * seed,
        "flag": bool(seed % 2),
        "table": np.arange(7, dtype=np.int64) * seed,
        "number": np.float32(seed) / 3,
        "nothing": None,
        "no_leaves": (),
        "no_elements": made(lambda: jnp.zeros((0, 3)), whole),
    }


def small_state(seed: int) -> dict[str, Any]:
    """Few leaves and no compilation: for processes that live for one save. ``w`` is split over the whole world."""
    values = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) + seed
    return {
        "w": jax.make_array_from_callback(values.shape, _over_all("x"), lambda index: values[index]),
        "table": np.arange(7, dtype=np.int64) * seed,
        "step": seed,
    }


def bits(state: Any) -> list[tuple[str, str, Any]]:
    """(path, type and dtype, raw bytes of what this process holds) of every leaf."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        kind = f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')} {getattr(leaf, 'shape', '')}"
        value = jax.random.key_data(leaf) if is_key(leaf) else leaf
        if isinstance(value, jax.Array):
            raw: Any = [(str(s.index), np.asarray(s.data).tobytes()) for s in value.addressable_shards]
        else:
            raw = np.asarray(value).tobytes()
        found.append((jax.tree_util.keystr(path), kind, raw))
    return found


def store_at(
    root: Path,
    attempt: int,
    *,
    settings: StoreSettings = QUICK,
    retention: KeepRule | None = None,
    shared: coordination.Coordination | None = None,
) -> Store:
    """A claimed store of the run at ``root``."""
    owner = Owner(OWNER.job_uid, OWNER.namespace, OWNER.name, attempt)
    store = Store(
        RunFolder(root),
        attempt=attempt,
        owner=owner,
        coordination=shared or coordination.LocalCoordination(),
        settings=settings,
        retention=retention,
    )
    store.claim()
    return store


def flip_bit(path: Path, *, byte: int | None = None) -> None:
    """Flip one bit of a file, in the middle unless told otherwise."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if byte is None else byte] ^= 0x10
    path.write_bytes(data)
