"""Training in which one rank asks for saves by itself, whenever the one before was answered: ``RANK REQUESTS``."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future

import jax.numpy as jnp
from jax.experimental import multihost_utils

import holdfast
from holdfast_contract.manifest import CheckpointRef

STEP_SECONDS = 0.005
"""What a step takes; the last one comes some time after the last answer."""
STEPS = 4000


def main() -> None:
    """Train until all requests are answered, and tell each answer."""
    asker, requests = int(sys.argv[1]), int(sys.argv[2])
    with holdfast.session(every=holdfast.only_at_end(), keep=holdfast.keep_all()) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        pending: Future[CheckpointRef] | None = None
        answered = 0
        for step in run.steps(until=STEPS):
            if run.process_index == asker and pending is None and answered < requests:
                pending = run.request_save()
            total = int(multihost_utils.process_allgather(jnp.int32(answered)).max())
            run.commit(step, {"n": jnp.int32(step)})
            if pending is not None and pending.done():
                print(f"answer {pending.result().step}", flush=True)
                answered, pending = answered + 1, None
            if total == requests:
                break
            time.sleep(STEP_SECONDS)
    print("ended", flush=True)


if __name__ == "__main__":
    main()
