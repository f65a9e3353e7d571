"""An existing loop around Orbax's CheckpointManager, sealed: a few lines more, and no damaged step is ever restored.

    python examples/sealed_orbax.py /tmp/holdfast-sealed

Start it again to see it go on; flip a bit in its newest step to see it go on from the one before.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import holdfast


@jax.jit
def train_step(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """One step towards all ones."""
    return {"w": state["w"] + 0.1 * (1.0 - state["w"])}


def main(folder: Path, steps: int = 5) -> None:
    """Train ``steps`` more steps."""
    state = {"w": jnp.zeros(1024)}
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=3)) as manager:
        # Before: newest = manager.latest_step(), whatever state it is in.
        newest = holdfast.newest_sealed(folder)
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        begun = 0 if newest is None else newest
        for refused in [step for step in manager.all_steps() if step > begun]:
            manager.delete(refused)  # damaged, or never sealed: its number is needed again
        print(f"begins after step {begun}")
        for step in range(begun + 1, begun + 1 + steps):
            state = train_step(state)
            manager.wait_until_finished()
            holdfast.seal(folder)  # what has been finished since the last time
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        holdfast.seal(folder)
    print(f"sealed: {[c.step for c in holdfast.checkpoints(folder, deep=True) if c.valid]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
