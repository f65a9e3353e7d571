"""Plain JAX with a loop of your own: parameters and momentum are dictionaries, and the loop decides when to save.

    python examples/plain_loop.py /tmp/holdfast-plain [steps]

Stop it at any moment, with Ctrl-C or `kill`, and start it again: it continues from the last save, and its result is
bit-identical to that of a run that was never interrupted.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

import holdfast

State = dict[str, Any]


@jax.jit
def train_step(params: State, momentum: State, key: jax.Array) -> tuple[State, State, jax.Array]:
    """Take one step of momentum descent on random points of a line. Returns parameters, momentum and the loss."""
    x = jax.random.uniform(key, (32,))

    def loss(p: State) -> jax.Array:
        return jnp.mean((p["slope"] * x + p["offset"] - (3.0 * x - 1.0)) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, value


def main() -> None:
    """Train and print the parameters, to the bit."""
    until = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    params: State = {"slope": jnp.float32(0), "offset": jnp.float32(0)}
    momentum = jax.tree.map(jnp.zeros_like, params)
    with holdfast.Checkpointer(sys.argv[1], params, momentum) as checkpointer:
        begun = checkpointer.restore()
        print(f"begins after step {begun}")
        params, momentum = checkpointer.model, checkpointer.optimizer
        for step in range(begun + 1, until + 1):
            key = jax.random.fold_in(jax.random.key(0), step)
            params, momentum, loss = train_step(params, momentum, key)
            if step % 20 == 0 or step == until:
                checkpointer.save(step, {"loss": loss}, model=params, optimizer=momentum)
    print(f"slope {float(params['slope']).hex()}, offset {float(params['offset']).hex()}, loss {float(loss):.1e}")


if __name__ == "__main__":
    main()
