"""What happens when storage corrupts checkpoints: a flipped bit, a truncated file, a lost manifest, and then all of them.

    python examples/recovery_from_damage.py /tmp/holdfast-recovery

It prints each step. The folder must be new: the example damages the checkpoints in it.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import jax.numpy as jnp

import holdfast
from holdfast.errors import NoValidCheckpoint


def train(path: Path, until: int) -> int:
    """Train until a step. Returns the step that it continued from."""
    with holdfast.session(path, run="demo", every=holdfast.every_steps(1), keep=holdfast.keep_all()) as run:
        state, _ = run.restore(lambda: {"w": jnp.zeros(4096)})
        begun = int(state["w"][0])
        for step in run.steps(until=until):
            state = {"w": state["w"] + 1}
            run.commit(step, state, metrics={"loss": 1 / step})
    return begun


def show(path: Path) -> None:
    """Print the status of each checkpoint, after reading every byte."""
    for checkpoint in holdfast.checkpoints(path, deep=True):
        print(f"  attempt {checkpoint.attempt} step {checkpoint.step}: {checkpoint.status} {checkpoint.reason}")


def largest_file(folder: Path) -> Path:
    """Return the largest file of a checkpoint, which holds the arrays."""
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def main(path: Path) -> None:
    """Damage one checkpoint after another, and continue training each time."""
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    print("1. A run takes five steps and saves each.")
    train(path, until=5)
    first = path / "demo" / "1"

    print("2. One bit of the newest checkpoint flips, and one file of the second newest is truncated.")
    data = bytearray(largest_file(first / "5").read_bytes())
    data[len(data) // 2] ^= 1
    largest_file(first / "5").write_bytes(data)
    os.truncate(largest_file(first / "4"), 100)
    show(path)

    print("3. The third newest loses its manifest: without a manifest it is not a checkpoint.")
    (first / "3" / "HOLDFAST.json").unlink()

    print(f"4. The run starts again and continues from step {train(path, until=6)}.")
    show(path)

    print("5. Every checkpoint is damaged: the run refuses to start from scratch over them.")
    for checkpoint in holdfast.checkpoints(path):
        os.truncate(largest_file(checkpoint.folder), 1)
    try:
        train(path, until=7)
    except NoValidCheckpoint as error:
        print(f"  {type(error).__name__}: {len(error.rejected)} refused, exit code {int(error.exit_code)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
