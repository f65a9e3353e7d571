"""Two JAX processes that stay up for a whole test session and run tasks together: a real distributed world, once."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from holdfast.distributed.coordination import Coordination
from tests.support.training.coordinator import coordinator_address

REPOSITORY = Path(__file__).resolve().parents[3]


class Scoped:
    """The coordination service of the world below one prefix, so that tests do not meet each other's keys."""

    def __init__(self, inner: Coordination, scope: str) -> None:
        self._inner, self._scope = inner, scope
        self.process_index, self.process_count = inner.process_index, inner.process_count

    def create(self, key: str, value: str) -> bool:
        return self._inner.create(f"{self._scope}/{key}", value)

    def try_get(self, key: str) -> str | None:
        return self._inner.try_get(f"{self._scope}/{key}")

    def get(self, key: str, timeout_seconds: float) -> str:
        return self._inner.get(f"{self._scope}/{key}", timeout_seconds)

    def directory(self, prefix: str) -> dict[str, str]:
        found = self._inner.directory(f"{self._scope}/{prefix}")
        return {key.removeprefix(f"{self._scope}/"): value for key, value in found.items()}

    def delete(self, key: str) -> None:
        self._inner.delete(f"{self._scope}/{key}")

    def barrier(self, name: str, timeout_seconds: float) -> None:
        self._inner.barrier(f"{self._scope}/{name}", timeout_seconds)


class World:
    """The parent's side: ``call`` runs one task in every process and returns their results by rank."""

    def __init__(self, ranks: list[subprocess.Popen[bytes]]) -> None:
        self.ranks = ranks
        self._calls = 0

    def call(self, task: str, *args: Any) -> list[Any]:
        """Run ``module:function`` as ``function(coordination, *args)`` on all ranks. A rank's error is raised here."""
        self._calls += 1
        for rank in self.ranks:
            assert rank.stdin is not None
            _send(rank.stdin, (task, f"call-{self._calls}", args))
        answers = [_receive(rank.stdout) for rank in self.ranks]
        for number, (fine, answer) in enumerate(answers):
            if not fine:
                raise AssertionError(f"rank {number}: {answer}")
        return [answer for _, answer in answers]


@contextlib.contextmanager
def world(processes: int = 2, *, devices: int = 2) -> Iterator[World]:
    """Start a world, end it whatever happens."""
    env = os.environ | {
        # In place of the tests' own: with the older emitters Orbax's writer changes bits of NaNs.
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
    }
    with coordinator_address() as coordinator:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.storage.world", coordinator, str(processes), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                cwd=REPOSITORY,
            )
            for rank in range(processes)
        ]
        try:
            yield World(ranks)
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.communicate()


def serve(address: str, processes: int, rank: int) -> None:
    """A rank: join, then run tasks until the parent goes away."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    import jax

    config: Any = jax.config
    config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, rank)
    from holdfast.distributed import coordination

    shared = coordination.current()
    while True:
        try:
            task, scope, args = _receive(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        module, _, name = task.partition(":")
        try:
            answer = (True, getattr(importlib.import_module(module), name)(Scoped(shared, scope), *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        _send(answers, answer)


def _send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("!Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("!Q", head)[0]))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
