"""Fine-tuning: take only the encoder's parameters from an earlier run; use a new head and a new optimizer.

    python examples/finetune_parameters.py /tmp/holdfast-finetune

The earlier run does not change. The new run has its own checkpoints and continues from them when you start it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

import holdfast


def pretrain(path: Path) -> None:
    """Train a first run, whose checkpoints hold parameters and optimizer state."""
    optimizer = optax.adam(1e-2)

    def init() -> dict[str, Any]:
        params = {"encoder": {"w": jnp.ones((8, 8))}, "head": {"w": jnp.zeros((8, 100))}}
        return {"params": params, "opt": optimizer.init(params)}

    with holdfast.session(path, run="pretrained", every=holdfast.every_steps(5)) as run:
        state, _ = run.restore(init)
        for step in run.steps(until=10):
            gradients = jax.tree.map(lambda p: p - 2.0, state["params"])
            updates, opt = optimizer.update(gradients, state["opt"])
            state = {"params": optax.apply_updates(state["params"], updates), "opt": opt}
            run.commit(step, state, metrics={"loss": 10.0 - step})


def finetune(path: Path) -> None:
    """Train a second run that starts from the encoder of the first run's best checkpoint."""
    optimizer = optax.sgd(1e-2)

    def init() -> dict[str, Any]:
        loaded = holdfast.load(path, run="pretrained", best=("loss", "min"), parts=("params.encoder",))
        print(f"encoder of step {loaded.step}, loss {loaded.metrics['loss']:g}")
        params = {"encoder": loaded.state["params"]["encoder"], "head": {"w": jnp.zeros((8, 3))}}
        return {"params": params, "opt": optimizer.init(params)}

    with holdfast.session(path, run="finetuned", every=holdfast.every_steps(5)) as run:
        state, _ = run.restore(init())  # pass a value: a function would run once more for its shapes
        begun = float(state["params"]["encoder"]["w"][0, 0])
        for step in run.steps(until=5):
            run.commit(step, state)
    print(f"encoder weight {begun:.3f}, head of {state['params']['head']['w'].shape[1]} classes")


if __name__ == "__main__":
    pretrain(Path(sys.argv[1]))
    finetune(Path(sys.argv[1]))
