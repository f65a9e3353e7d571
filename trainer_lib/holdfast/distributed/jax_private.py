"""The only module that uses private parts of JAX. Each use says why, and checks the version first."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from holdfast.installed import require_checked

log = logging.getLogger("holdfast")


class CoordinationClient(Protocol):
    """The methods of jaxlib's coordination service client that are used here.

    Calls raise ``jax.errors.JaxRuntimeError`` whose text begins with the status name (``ALREADY_EXISTS``,
    ``NOT_FOUND``, ``DEADLINE_EXCEEDED`` ...).
    """

    def key_value_set(self, key: str, value: str) -> None: ...
    def key_value_try_get(self, key: str) -> str: ...
    def key_value_dir_get(self, key: str) -> Iterable[tuple[str, str]]: ...
    def key_value_delete(self, key: str) -> None: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...
    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None: ...


def coordination_client() -> CoordinationClient | None:
    """The client of this process's distributed runtime; None before ``jax.distributed.initialize`` or without it.

    It is private because JAX publishes no key-value store, only what it builds on one.
    """
    require_checked("jax")
    from jax._src import distributed

    return cast("CoordinationClient | None", distributed.global_state.client)


def place_in_world() -> tuple[int, int]:
    """(index of this process, number of processes). Unlike ``jax.process_index``, this does not start a backend."""
    require_checked("jax")
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def write_own_compile_cache(minimum_seconds: float, *, shared: bool) -> None:
    """Let every process write entries to the compilation cache; JAX lets only process 0 write.

    JAX assumes one folder ``shared`` by all. Holdfast has one per rank, and on CPU ranks do not even share keys, so every
    rank but the first would compile everything again after each restart. Programs that compile in less than
    ``minimum_seconds`` are left out. Entries are written atomically. JAX writes in place and never replaces an entry, so
    after a kill or a full disk every later process would find half an entry and compile again.
    """
    require_checked("jax")
    from jax._src import compilation_cache, compiler

    def write(
        cache_key: str,
        compile_time_secs: float,
        module_name: str,
        backend: object,
        executable: object,
        host_callbacks: Sequence[object],
    ) -> None:
        is_process_0s = shared and cast("Any", backend).platform != "cpu" and cast("Any", backend).process_index() != 0
        if host_callbacks or compile_time_secs < minimum_seconds or is_process_0s:
            return
        try:
            _write_entries_whole(compilation_cache._get_cache(cast("Any", backend)))  # noqa: SLF001
            compilation_cache.put_executable_and_time(
                cache_key, module_name, cast("Any", executable), cast("Any", backend), int(compile_time_secs)
            )
        except Exception as error:  # a cache that cannot be written must not end training
            log.warning("the compiled program %s was not cached: %r", module_name, error)

    compiler._cache_write = write  # noqa: SLF001  the version was checked


def _write_entries_whole(cache: Any) -> None:
    """Make the cache write entries atomically, if it is a folder without a size limit; JAX locks one that has a limit.

    Entries are not synced, because training waits for the write. An entry that a power loss leaves unreadable is replaced.
    """
    from jax._src import lru_cache

    if not isinstance(cache, lru_cache.LRUCache) or cache.eviction_enabled or "://" in str(cache.path):
        return
    folder = Path(str(cache.path))

    def put(key: str, value: bytes) -> None:
        """Called when the entry did not exist or could not be read."""
        part = folder / f".{key}.{uuid.uuid4().hex}.part"
        try:
            part.write_bytes(value)
            part.replace(folder / f"{key}{lru_cache._CACHE_SUFFIX}")  # noqa: SLF001
        finally:
            part.unlink(missing_ok=True)

    cache.put = put  # type: ignore[method-assign]
