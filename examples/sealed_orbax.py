"""An existing loop around Orbax's CheckpointManager, with sealing: a few more lines, and no damaged step is ever restored.

    python examples/sealed_orbax.py /tmp/holdfast-sealed

Start it again, and it continues. Flip a bit in its newest step, and it continues from the step before.
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
    """Take one step towards all ones."""
    return {"w": state["w"] + 0.1 * (1.0 - state["w"])}


def main(folder: Path, steps: int = 5) -> None:
    """Train ``steps`` more steps."""
    state = {"w": jnp.zeros(1024)}
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=3)) as manager:
        # Without Holdfast: newest = manager.latest_step(), damaged or not.
        newest = holdfast.newest_sealed(folder)
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        begun = 0 if newest is None else newest
        for refused in [step for step in manager.all_steps() if step > begun]:
            manager.delete(refused)  # damaged or never sealed: this loop saves that step again
        print(f"begins after step {begun}")
        for step in range(begun + 1, begun + 1 + steps):
            state = train_step(state)
            manager.wait_until_finished()
            holdfast.seal(folder)  # seal the steps that have finished since the last call
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        holdfast.seal(folder)
    print(f"sealed: {[c.step for c in holdfast.checkpoints(folder, deep=True) if c.valid]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
