"""A session whose loss goes wrong: what is called unhealthy is neither kept nor gone back to as the best."""

from __future__ import annotations

import math
from pathlib import Path

import jax.numpy as jnp

import holdfast
from holdfast_contract.manifest import from_bytes
from holdfast_contract.runfolder import RunFolder
from tests.support.polling import until

LOSSES = {1: 3.0, 2: 1.0, 3: 0.5, 4: math.nan, 5: 2.0, 6: 2.5}
NORMS = {1: 1.0, 2: 1.0, 3: math.inf, 4: 1.0, 5: 1.0, 6: 1.0}


def test_an_unhealthy_state_is_never_the_best(tmp_path: Path) -> None:
    keep = holdfast.keep(latest=2, best=1)
    healthy = holdfast.finite("loss", "norm")
    with holdfast.session(tmp_path, every=holdfast.at_steps(*LOSSES), keep=keep, healthy=healthy) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=6):
            metrics = {"loss": jnp.float32(LOSSES[step]), "norm": NORMS[step]}
            run.commit(step, {"n": jnp.int32(step)}, metrics=metrics)
    folder = RunFolder(tmp_path / "default")
    # Deleting goes on behind the end of the session.
    until(lambda: [ref.step for ref in folder.candidates()] == [6, 5, 2], 10, "the best of the healthy ones")
    told = {n: from_bytes((folder.step_folder(1, n) / "HOLDFAST.json").read_bytes()).metrics for n in (2, 6)}
    assert told == {2: {"loss": 1.0, "norm": 1.0, "healthy": 1.0}, 6: {"loss": 2.5, "norm": 1.0, "healthy": 1.0}}


def test_the_best_to_go_on_from_is_a_healthy_one(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(1), healthy=holdfast.finite("norm")) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=3):
            run.commit(step, {"n": jnp.int32(step)}, metrics={"loss": LOSSES[step], "norm": NORMS[step]})
    with holdfast.session(tmp_path) as run:
        state, _ = run.restore(lambda: {"n": jnp.int32(0)}, best=("loss", "min"))
    assert int(state["n"]) == 2
