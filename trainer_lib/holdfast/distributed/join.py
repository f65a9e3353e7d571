"""Joining the other processes of the job, with deadlines for a world that is restarted as a whole."""

from __future__ import annotations

import itertools
import logging
import socket
import time
from pathlib import Path
from typing import Final

from holdfast.distributed import jax_private
from holdfast.distributed.coordination import Coordination, current
from holdfast.distributed.world import World
from holdfast.errors import PeerLost

JOIN_SECONDS: Final = 300
"""From the first attempt to connect until every process has joined; pods may still be pulling their image."""
HEARTBEAT_SECONDS: Final = 10
"""The others take a process for dead after this time without a heartbeat; JAX's default is 100 s."""
SHUTDOWN_SECONDS: Final = 15
"""How long a process that ends waits for the others to end as well; JAX's default is 300 s."""
CACHE_FROM_SECONDS: Final = 0.02
"""Programs that compile faster are not cached. JAX's default is 1 s, but a restart compiles dozens of small ones."""
_PROBE_SECONDS: Final = 0.02

log = logging.getLogger("holdfast")
_sessions = itertools.count(1)


def join(world: World | None) -> Coordination:
    """Initialize ``jax.distributed`` if the world has several processes and the program has not done so itself.

    Raises:
        PeerLost: the coordinator or another process did not appear within JOIN_SECONDS.
    """
    # Ranks open their sessions in the same order, so a session has the same scope on every rank.
    scope = str(next(_sessions))
    if world is None or world.process_count == 1 or jax_private.coordination_client() is not None:
        return current(scope)
    import jax

    deadline = time.monotonic() + JOIN_SECONDS
    if world.process_index != 0:
        _wait_for_port(world.coordinator, deadline)
    try:
        jax.distributed.initialize(
            coordinator_address=world.coordinator,
            num_processes=world.process_count,
            process_id=world.process_index,
            # In a pod JAX would ask the API server for its identity; a training pod has no token for that and needs none.
            cluster_detection_method="deactivate",
            coordinator_bind_address=world.bind or None,
            initialization_timeout=max(1, int(deadline - time.monotonic())),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except jax.errors.JaxRuntimeError as error:
        raise PeerLost(f"the other processes at {world.coordinator} ({error})", limit_seconds=JOIN_SECONDS) from error
    return current(scope)


def use_compile_cache(folder: Path) -> None:
    """Keep compiled programs of this rank in ``folder``, so that a process restarted in place does not compile again.

    A folder that the program or ``JAX_COMPILATION_CACHE_DIR`` has set is used instead; all ranks may share it.
    """
    import jax

    shared = bool(getattr(jax.config, "jax_compilation_cache_dir", None))
    if not shared:
        jax.config.update("jax_compilation_cache_dir", str(folder))  # type: ignore[no-untyped-call]
    jax_private.write_own_compile_cache(CACHE_FROM_SECONDS, shared=shared)


def _wait_for_port(address: str, deadline: float) -> None:
    """Wait until the coordinator listens. JAX's own retry waits a whole second after the first failure."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                waiting_for = f"the coordinator at {address} ({error})"
                raise PeerLost(waiting_for, limit_seconds=JOIN_SECONDS, missing=[0]) from None
        time.sleep(_PROBE_SECONDS)
