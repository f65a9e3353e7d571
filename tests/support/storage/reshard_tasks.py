"""States whose layout is an argument: saved by one world, restored by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from holdfast.distributed.coordination import Coordination
from holdfast.store import UNPINNED, CheckpointExtras
from tests.support.storage.states import bits, store_at

Layout = tuple[tuple[int, int], tuple[str | None, ...]]
"""A mesh's shape over axes a and b, and the axes that the two dimensions of the weights are split over."""


def sharding_of(layout: Layout, *, split: bool = True) -> jax.sharding.NamedSharding:
    shape, axes = layout
    spec: Any = jax.sharding.PartitionSpec
    devices = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("a", "b")), spec(*axes) if split else spec())


def laid_out(layout: Layout) -> dict[str, Any]:
    """Weights (8, 12), a bfloat16 vector, batched keys, a counter: their numbers do not depend on the layout."""
    split, whole = sharding_of(layout), sharding_of(layout, split=False)
    key = jax.random.key(3)

    def made(build: Any, sharding: jax.sharding.Sharding) -> Any:
        return jax.jit(build, out_shardings=sharding)()

    return {
        "w": made(lambda: jax.random.normal(key, (8, 12)), split),
        "b": made(lambda: jnp.arange(5, dtype=jnp.bfloat16) / 3, whole),
        "keys": made(lambda: jax.random.split(key, 4), whole),
        "count": made(lambda: jnp.int32(17), whole),
        "step": 17,
    }


def save_laid_out(shared: Coordination | None, root: Path, attempt: int, layout: Layout) -> bool:
    """Save step 17 with a data position that names the process."""
    store = store_at(root, attempt, shared=shared) if shared else store_at(root, attempt)
    rank = shared.process_index if shared else 0
    store.save(17, laid_out(layout), CheckpointExtras(data=b'{"json": {"process": %d}}' % rank)).result(30)
    store.close()
    return True


def restore_laid_out(shared: Coordination | None, root: Path, attempt: int, layout: Layout) -> tuple[bool, bool]:
    """(every number equal, every sharding as wanted)."""
    store = store_at(root, attempt, shared=shared) if shared else store_at(root, attempt)
    wanted = laid_out(layout)
    struct: Any = jax.ShapeDtypeStruct
    abstract = jax.tree.map(
        lambda x: struct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x, wanted
    )
    restored = store.restore(UNPINNED, abstract)
    store.close()
    assert restored is not None
    arrays = [(a, b) for a, b in zip(jax.tree.leaves(restored.state), jax.tree.leaves(wanted), strict=True)]
    placed = all(a.sharding == b.sharding for a, b in arrays if isinstance(a, jax.Array))
    return bits(restored.state) == bits(wanted), placed
