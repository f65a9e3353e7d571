"""Restoring with and without Holdfast's own reader, in one process or in each of a world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from holdfast.distributed.coordination import Coordination
from holdfast.store import UNPINNED
from holdfast.store.format import orbax_io
from holdfast.store.read import verified_read
from tests.support.storage.reshard_tasks import Layout, laid_out, sharding_of
from tests.support.storage.states import bits, state_of, store_at
from tests.support.storage.world import Scoped


@contextmanager
def reading(*, by_orbax: bool) -> Iterator[list[str]]:
    """Inside, restores are read by Orbax, or by Holdfast alone; the list says who has read."""
    plan, load = verified_read.plan_state, orbax_io.load
    readers: list[str] = []
    patched: Any = (verified_read, orbax_io)

    def planned(*args: Any, **kwargs: Any) -> Any:
        made = None if by_orbax else plan(*args, **kwargs)
        readers.append("none" if made is None else "holdfast")
        return made

    def loaded(*args: Any, **kwargs: Any) -> Any:
        readers.append("orbax")
        return load(*args, **kwargs)

    patched[0].plan_state, patched[1].load = planned, loaded
    try:
        yield readers
    finally:
        patched[0].plan_state, patched[1].load = plan, load


def restored(root: Path, attempt: int, wanted: Any, *, by_orbax: bool, shared: Coordination | None = None) -> Any:
    """The newest checkpoint's state, read in one of the two ways and in no other."""
    with reading(by_orbax=by_orbax) as readers:
        found = store_at(root, attempt, shared=_world_of(shared, attempt)).restore(UNPINNED, wanted)
    assert found is not None
    assert readers == (["none", "orbax"] if by_orbax else ["holdfast"]), readers
    return found.state


def _world_of(shared: Coordination | None, attempt: int) -> Coordination | None:
    """A coordinator serves one attempt only."""
    return None if shared is None else Scoped(shared, f"attempt-{attempt}")


def placements(state: Any) -> list[Any]:
    """Of every array its sharding and whether it is bound to it."""
    return [(x.sharding, x.committed) for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]


def both_ways(shared: Coordination, root: Path, attempt: int, layout: Layout | None) -> tuple[bool, bool]:
    """(the same bits, the same placement) by both readers; ``layout`` of the target, None for the mixed state."""
    wanted = state_of(0) if layout is None else laid_out(layout)
    states = [
        restored(root, attempt + number, wanted, by_orbax=by_orbax, shared=shared)
        for number, by_orbax in enumerate((False, True))
    ]
    return bits(states[0]) == bits(states[1]), placements(states[0]) == placements(states[1])


def _array(value: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def donate_after_restore(shared: Coordination | None, root: Path, attempt: int, layout: Layout) -> bool:
    """Whether steps that donate what was restored compute what they would have, and change nothing else.

    The replicas of an array are restored into one memory, which no device may then write into.
    """
    spec = {"w": (512, 256), "b": (256,)}
    whole, split = sharding_of(layout, split=False), sharding_of(layout)
    values = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in spec.items()}

    def made(number: int) -> dict[str, jax.Array]:
        shardings = {"w": split if number else whole, "b": whole}
        return {name: _array(value, shardings[name]) for name, value in values.items()}

    store = store_at(root, attempt, shared=_world_of(shared, attempt))
    store.save(1, made(0)).result(30)
    store.close()
    step = jax.jit(lambda state: jax.tree.map(lambda x: x * 2 + 1, state), donate_argnums=0)
    for number in range(2):
        state = restored(root, attempt + 1 + number, made(number), by_orbax=False, shared=shared)
        kept = jax.tree.map(lambda x: np.array(x.addressable_data(0)), state)
        first = jax.tree.map(lambda x: [np.asarray(s.data) for s in x.addressable_shards], state)
        moved = step(step(state))
        for name, value in values.items():
            for shard in moved[name].addressable_shards:
                if not np.array_equal(np.asarray(shard.data), (value[shard.index] * 2 + 1) * 2 + 1):
                    return False
            if not all(np.array_equal(view, kept[name]) for view in first[name] if view.shape == value.shape):
                return False  # a view taken before the step was written into
    return True
