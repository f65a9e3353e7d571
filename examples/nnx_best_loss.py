"""Flax NNX: save and restore model, optimizer and random streams in one call each; keep the checkpoint with the lowest loss.

python examples/nnx_best_loss.py /tmp/checkpoints
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from flax import nnx

import holdfast


def build() -> dict[str, Any]:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(1, 32, rngs=rngs), nnx.tanh, nnx.Linear(32, 1, rngs=rngs))
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param), "rngs": rngs}


@nnx.jit
def train_step(model: Any, optimizer: Any, rngs: nnx.Rngs) -> Any:
    x = jax.random.uniform(rngs(), (64, 1))
    loss, gradients = nnx.value_and_grad(lambda m: jnp.square(m(x) - jnp.sin(6 * x)).mean())(model)
    optimizer.update(model, gradients)
    return loss


keep = holdfast.keep(latest=2, best=1, metric="loss", mode="min")
with holdfast.session(sys.argv[1], every=holdfast.every_steps(20), keep=keep, healthy=holdfast.finite("loss")) as run:
    state, _ = run.restore(build)
    for step in run.steps(until=200):
        loss = train_step(state["model"], state["optimizer"], state["rngs"])
        run.commit(step, state, metrics={"loss": loss})
for found in holdfast.checkpoints(sys.argv[1]):
    print(f"step {found.step}: loss {found.metrics['loss']:.2g}")
