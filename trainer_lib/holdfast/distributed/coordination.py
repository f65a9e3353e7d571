"""A small key-value store and barrier shared by all processes of an attempt.

With several processes it is the coordination service that JAX already runs; with one it is a dictionary. Keys are separated
by slashes. A coordination service lives as long as one attempt, so keys need no attempt number.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from holdfast.distributed import jax_private
from holdfast.errors import CoordinationLost

KEY_PREFIX: Final = "holdfast"
"""Holdfast's prefix in the service; JAX and Orbax use others."""


class Coordination(Protocol):
    """What every rank can read and write, from any thread. A call takes about half a millisecond.

    All calls raise CoordinationLost when the service is gone.
    """

    @property
    def process_index(self) -> int: ...

    @property
    def process_count(self) -> int: ...

    def create(self, key: str, value: str) -> bool:
        """Write ``key`` unless it exists: True for the one caller that wrote it."""

    def try_get(self, key: str) -> str | None:
        """The value, or None if there is none yet."""

    def get(self, key: str, timeout_seconds: float) -> str:
        """Wait for the value and return it. Raises TimeoutError."""

    def directory(self, prefix: str) -> dict[str, str]:
        """All keys below ``prefix`` (a folder, with or without its final slash), by full key."""

    def delete(self, key: str) -> None:
        """Remove ``key`` (with or without a final slash) and everything below it. A missing key is no error."""

    def barrier(self, name: str, timeout_seconds: float) -> None:
        """Return when every process has called with this name, which can be used once. Raises TimeoutError."""


class LocalCoordination:
    """The coordination of a single process: a dictionary with the same rules."""

    process_index = 0
    process_count = 1

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def create(self, key: str, value: str) -> bool:
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def try_get(self, key: str) -> str | None:
        with self._changed:
            return self._values.get(key)

    def get(self, key: str, timeout_seconds: float) -> str:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"key {key!r} was not written within {timeout_seconds:g} s")
            return self._values[key]

    def directory(self, prefix: str) -> dict[str, str]:
        with self._changed:
            return {k: v for k, v in self._values.items() if k.startswith(prefix.rstrip("/") + "/")}

    def delete(self, key: str) -> None:
        key = key.rstrip("/")
        with self._changed:
            for k in [k for k in self._values if k == key or k.startswith(key + "/")]:
                del self._values[k]

    def barrier(self, name: str, timeout_seconds: float) -> None:  # noqa: ARG002  no other process to wait for
        if not self.create(f"barrier/{name}", ""):
            raise ValueError(f"barrier {name!r} was used before; a name can be used once")


class JaxCoordination:
    """The coordination of several processes: the service of ``jax.distributed``, below Holdfast's prefix.

    ``scope`` separates several uses in the life of one process; all ranks must choose the same one.
    """

    def __init__(
        self, client: jax_private.CoordinationClient, process_index: int, process_count: int, *, scope: str
    ) -> None:
        self._client = client
        self._prefix = f"{KEY_PREFIX}/{scope}/"
        self.process_index = process_index
        self.process_count = process_count

    def create(self, key: str, value: str) -> bool:
        try:
            self._client.key_value_set(self._prefix + key, value)
        except RuntimeError as error:
            if _status(error) == "ALREADY_EXISTS":
                return False
            raise _translated(error, f"writing key {key!r}") from error
        return True

    def try_get(self, key: str) -> str | None:
        try:
            return self._client.key_value_try_get(self._prefix + key)
        except RuntimeError as error:
            if _status(error) == "NOT_FOUND":
                return None
            raise _translated(error, f"reading key {key!r}") from error

    def get(self, key: str, timeout_seconds: float) -> str:
        try:
            return self._client.blocking_key_value_get(self._prefix + key, _milliseconds(timeout_seconds))
        except RuntimeError as error:
            raise _translated(error, f"key {key!r} within {timeout_seconds:g} s") from error

    def directory(self, prefix: str) -> dict[str, str]:
        try:
            pairs = self._client.key_value_dir_get(self._prefix + prefix.rstrip("/"))
        except RuntimeError as error:
            raise _translated(error, f"listing {prefix!r}") from error
        return {k.lstrip("/").removeprefix(self._prefix): v for k, v in pairs}

    def delete(self, key: str) -> None:
        try:
            self._client.key_value_delete(self._prefix + key.rstrip("/"))
        except RuntimeError as error:
            if _status(error) != "NOT_FOUND":
                raise _translated(error, f"deleting key {key!r}") from error

    def barrier(self, name: str, timeout_seconds: float) -> None:
        try:
            self._client.wait_at_barrier(self._prefix + name, _milliseconds(timeout_seconds))
        except RuntimeError as error:
            raise _translated(error, f"barrier {name!r} within {timeout_seconds:g} s") from error


def current(scope: str = "0") -> Coordination:
    """The coordination of this process: of ``jax.distributed`` if it was initialized, else a local one."""
    client = jax_private.coordination_client()
    if client is None:
        return LocalCoordination()
    return JaxCoordination(client, *jax_private.place_in_world(), scope=scope)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _status(error: RuntimeError) -> str:
    """The status name at the start of the text, the only place where jaxlib's errors have it."""
    return str(error).partition(":")[0].strip()


def _translated(error: RuntimeError, doing: str) -> Exception:
    if _status(error) == "DEADLINE_EXCEEDED":
        return TimeoutError(f"{doing}: {error}")
    return CoordinationLost(doing, str(error))
