"""The smallest honest training program: sharded state, collectives in every step, a key, a data position.

Its last lines say the exit of the loop and a digest of the state, so that tests can compare runs bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import holdfast

State = dict[str, Any]
BEST_STEP = 10
"""By the metric ``distance``, so that the best is not the newest."""


class Counter:
    """A data iterator: the n-th batch is n."""

    def __init__(self) -> None:
        self.position = 0

    def __next__(self) -> float:
        self.position += 1
        return float(self.position)

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def main() -> None:
    """Train and tell."""
    args = parse_arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    with holdfast.session(every=holdfast.every_steps(args.every) if args.every else None) as run:
        print(f"attempt {run.attempt}")
        mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
        split, everywhere = NamedSharding(mesh, P("all")), NamedSharding(mesh, P())  # type: ignore[no-untyped-call]
        shardings = {"w": split, "momentum": split, "key": everywhere}

        def init() -> State:
            key = jax.random.key(7)
            w = jax.random.normal(key, (args.size // 4 * 4,))
            return {"w": w, "momentum": jnp.zeros_like(w), "key": key}

        def train_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
            key, noise_key = jax.random.split(state["key"])
            gradient = jnp.tanh(state["w"] + jax.random.normal(noise_key, state["w"].shape) * x)
            momentum = 0.9 * state["momentum"] + gradient - gradient.mean()
            w = state["w"] - 0.01 * momentum
            return {"w": w, "momentum": momentum, "key": key}, jnp.square(w).mean()

        step_fn = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, everywhere))
        data = Counter()
        best: Any = ("distance", "min") if args.from_best else None
        state, data = run.restore(init, data, shardings=shardings, step=args.from_step, best=best)
        print(f"restored {run.newest.attempt if run.newest else 0} {run.newest.step if run.newest else 0}")
        for step in run.steps(until=args.steps):
            misbehave(args, step)
            if is_meant(args.break_before, step):
                break
            if step == args.skip_batch:
                next(data)
            state, loss = step_fn(state, jnp.float32(next(data)))
            metrics = {"loss": loss, "distance": abs(step - BEST_STEP)}
            if not is_meant(args.forget_commit, step):
                run.commit(step, state, data=data, metrics=metrics, save=step == args.save_at)
            print(f"step {step}")
            if is_meant(args.break_after, step):
                break
            if args.step_seconds:
                time.sleep(args.step_seconds)
        print("loop ended")
        if args.collectives_after:
            for _ in range(args.collectives_after):
                multihost_utils.process_allgather(loss, tiled=True)
        print(f"digest {digest_of(state)}")


def misbehave(args: argparse.Namespace, step: int) -> None:
    """Do what a test asked for, at its step and in its rank."""
    if args.do is None:
        return
    what, _, place = args.do.partition(":")
    if not is_meant(place, step):
        return
    print(f"doing {what} at step {step}")
    if what == "raise":
        raise RuntimeError("a mistake in the program")
    if what == "exit":
        sys.exit(7)
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "sleep":
        time.sleep(3600)


def is_meant(place: str | None, step: int) -> bool:
    """Whether ``<rank or all>:<step>`` is here and now."""
    rank, _, when = (place or "all:-1").partition(":")
    return step == int(when) and rank in {"all", str(jax.process_index())}


def digest_of(state: State) -> str:
    """SHA-256 over all leaves, gathered."""
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(state):
        plain = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        digest.update(np.asarray(multihost_utils.process_allgather(plain, tiled=True)).tobytes())
    return digest.hexdigest()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--size", type=int, default=4096, help="elements of each of two float32 arrays")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--save-at", type=int)
    parser.add_argument("--skip-batch", type=int)
    parser.add_argument("--from-step", type=int, help="go on from this checkpoint and no other")
    parser.add_argument("--from-best", action="store_true", help="go on from the checkpoint of the least distance")
    parser.add_argument("--collectives-after", type=int, default=0)
    parser.add_argument("--break-before", help="leave the loop before this step: <rank or all>:<step>")
    parser.add_argument("--break-after", help="leave the loop after the commit of this step: <rank or all>:<step>")
    parser.add_argument("--forget-commit", help="do not commit this step: <rank or all>:<step>")
    parser.add_argument("--do", help="raise|exit|kill|sleep:<rank or all>:<step>")
    return parser.parse_args()


if __name__ == "__main__":
    main()
