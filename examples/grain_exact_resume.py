"""Grain: every process resumes its own stream of records at exactly the next record.

python examples/grain_exact_resume.py /tmp/checkpoints [steps]

Stop it at any instant and start it again: it prints the same checksum as a run that was never interrupted. The global batch
size is fixed, so a position has the same meaning for any number of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

import holdfast

P: Any = jax.sharding.PartitionSpec
spread: Any = jax.make_array_from_process_local_data
RECORDS, BATCH = 1000, 8


class Records:
    """This process's share of each batch. Grain derives the noise from the record's number and the seed."""

    def __init__(self, process_index: int, process_count: int) -> None:
        records = grain.MapDataset.range(RECORDS).seed(7).shuffle().repeat()
        noisy = records.random_map(lambda record, random: record + random.integers(100))
        self._batches = iter(noisy[process_index::process_count].batch(BATCH // process_count).to_iter_dataset())

    def __next__(self) -> Any:
        return np.asarray(next(self._batches), np.uint32)

    def get_state(self) -> Any:
        return self._batches.get_state()

    def set_state(self, state: Any) -> None:
        self._batches.set_state(state)

    def reposition(self, states: Sequence[Any]) -> None:
        """Continue from any old process's position: all of them had yielded a share of the same batches."""
        if any(state != states[0] for state in states):
            raise ValueError(f"states: found {list(states)}, allowed: the same number of batches everywhere")
        self.set_state(states[0])


@jax.jit
def train_step(state: dict[str, jax.Array], batch: jax.Array) -> dict[str, jax.Array]:
    return {"checksum": state["checksum"] * 31 + batch.sum(dtype=jnp.uint32)}


def main() -> None:
    until = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with holdfast.session(sys.argv[1], every=holdfast.every_steps(10)) as run:
        mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
        data = Records(jax.process_index(), jax.process_count())
        begin = lambda: {"checksum": jnp.uint32(0)}  # noqa: E731
        state, data = run.restore(begin, data, shardings=NamedSharding(mesh, P()))
        for step in run.steps(until=until):
            batch = spread(NamedSharding(mesh, P("all")), next(data))
            state = train_step(state, batch)
            run.commit(step, state, data=data)
    print(f"checksum after step {until}: {int(state['checksum']):#x}")


if __name__ == "__main__":
    main()
