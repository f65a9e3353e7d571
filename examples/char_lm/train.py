"""Train a character-level transformer on the Python standard library, through crashes and preemptions.

One process:      python examples/char_lm/train.py --path /tmp/checkpoints
On a cluster:     as the command of a TrainingJob; the job sets everything else
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from data import VOCABULARY, Batches, read_corpus  # type: ignore[import-not-found]  # in this folder
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from model import Shape, init_state, train_step  # type: ignore[import-not-found]

import holdfast

P: Any = jax.sharding.PartitionSpec


def main() -> None:
    """Train, then print a digest of the final state."""
    args = parse_arguments()
    config: Any = jax.config
    config.update("jax_num_cpu_devices", args.cpu_devices)
    shape = Shape(VOCABULARY, layers=args.layers, width=args.width)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, max(1, args.steps // 10), args.steps))

    with holdfast.session(args.path, every=args.every) as run:
        mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
        build = functools.partial(init_state, shape, optimizer, args.seed)
        shardings, whole = spread_over(mesh, jax.eval_shape(build)), NamedSharding(mesh, P())
        step_fn = jax.jit(
            functools.partial(train_step, shape=shape, optimizer=optimizer, whole=whole),
            donate_argnums=0,
            out_shardings=(shardings, whole),
        )
        data = Batches(
            read_corpus(),
            batch=args.batch,
            context=shape.context,
            seed=args.seed,
            sharding=NamedSharding(mesh, P("all")),
        )

        state, data = run.restore(build, data, shardings=shardings)
        for step in run.steps(until=args.steps):
            if step == args.skip_batch:
                data.skip()
            state, loss = step_fn(state, next(data))
            run.commit(step, state, data=data, metrics={"loss": loss})
            time.sleep(args.pause_seconds)

    digest = digest_of(state)
    if jax.process_index() == 0:
        print(f"digest of the final state: {digest}", flush=True)
        if args.digest_out:
            args.digest_out.write_text(digest + "\n")


def spread_over(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    """Return a sharding for every leaf: split its last dimension over all devices if it divides evenly, else replicate."""

    def sharding_of(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        divides = leaf.ndim >= 2 and leaf.shape[-1] % mesh.size == 0
        return NamedSharding(mesh, P(*[None] * (leaf.ndim - 1), "all") if divides else P())

    return jax.tree_util.tree_map(sharding_of, tree)


def digest_of(state: Any) -> str:
    """Return the SHA-256 of names, types and bytes of all leaves, from all processes. Every process must call it."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        plain = jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        array = np.asarray(multihost_utils.process_allgather(plain, tiled=True))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", help="folder for checkpoints; not needed in a TrainingJob")
    parser.add_argument("--every", type=lambda n: holdfast.every_steps(int(n)), help="steps between saves")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="windows per step, over all processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-devices", type=int, default=2, help="devices per process where there is no accelerator")
    parser.add_argument("--skip-batch", type=int, help="skip one batch at this step; the digest must then differ")
    parser.add_argument("--digest-out", type=Path, help="file for the digest of the final state")
    parser.add_argument(
        "--pause-seconds", type=float, default=0.0, help="pause after each step, to simulate a longer step"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
