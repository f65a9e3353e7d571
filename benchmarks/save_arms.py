"""Ways to save a state of arrays, behind one interface; also the state, the step, and the check of the stored bytes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import xxhash

from holdfast.distributed.coordination import LocalCoordination
from holdfast.store import Store, StoreSettings
from holdfast.store.store_settings import WriterName
from holdfast.store.write.arena import Arena
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder

State = dict[str, jax.Array]
MIB = 1 << 20
_LIMIT_SECONDS = 600.0
ready: Callable[[Any], Any] = jax.block_until_ready


@dataclass
class Timings:
    """Seconds of each save.

    ``call``: inside the call; ``waited``: the part of it that waits for the previous save; ``background``: from the end of
    the call until the save is durable; ``sealing``: the part of that for digests and manifest.
    """

    call: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    background: list[float] = field(default_factory=list)
    sealing: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Drop the timings of all saves so far."""
        for kept in vars(self).values():
            kept.clear()


class Arm(Protocol):
    """One way to save."""

    timings: Timings

    def begin(self, folder: Path) -> None:
        """Begin a new series of saves in an empty folder."""

    def save(self, step: int, state: State) -> None:
        """Save in the loop; the next step then donates the state."""

    def busy(self) -> bool:
        """Return whether a save is in flight."""

    def finish(self) -> None:
        """Wait for all saves in flight."""

    def stored(self, step: int) -> Path | None:
        """Return the Orbax checkpoint of a step, if this arm stores one."""


class Nothing:
    """The loop without saves."""

    def __init__(self) -> None:
        self.timings = Timings()

    def begin(self, folder: Path) -> None: ...

    def save(self, step: int, state: State) -> None: ...

    def busy(self) -> bool:
        return False

    def finish(self) -> None: ...

    def stored(self, step: int) -> Path | None:
        del step
        return None


class Asleep(Nothing):
    """A known delay: the harness must measure it."""

    SECONDS = 0.05

    def save(self, step: int, state: State) -> None:
        del step, state
        start = time.perf_counter()
        time.sleep(self.SECONDS)
        self.timings.call.append(time.perf_counter() - start)


class Copy(Nothing):
    """A copy into reused memory, without writing: no snapshot on the host can cost less."""

    def __init__(self) -> None:
        super().__init__()
        self._arena = Arena()

    def save(self, step: int, state: State) -> None:
        del step
        start = time.perf_counter()
        sources = [np.asarray(leaf) for leaf in state.values()]
        memory, offset, pairs = self._arena.hold(sum(s.nbytes for s in sources)), 0, []
        for source in sources:
            pairs.append((memory[offset : offset + source.nbytes].view(source.dtype).reshape(source.shape), source))
            offset += source.nbytes
        self._arena.copy(pairs)
        self.timings.call.append(time.perf_counter() - start)


class Orbax:
    """Plain Orbax. ``options`` are for its array handler; None means its StandardCheckpointHandler with default options."""

    def __init__(self, options: dict[str, Any] | None, *, sync: bool = False) -> None:
        self.timings = Timings()
        self._handler = ocp.PyTreeCheckpointHandler(**options) if options else ocp.StandardCheckpointHandler()
        self._arguments = ocp.args.PyTreeSave if options else ocp.args.StandardSave
        self._sync = sync
        self._called, self._running = 0.0, False
        done = ocp.options.AsyncOptions(post_finalization_callback=self._done)
        self._saver: Any = (
            ocp.Checkpointer(self._handler) if sync else ocp.AsyncCheckpointer(self._handler, async_options=done)
        )
        self._folder = Path()

    def begin(self, folder: Path) -> None:
        self._folder = folder

    def save(self, step: int, state: State) -> None:
        start = time.perf_counter()
        if not self._sync:
            self._saver.wait_until_finished()
        self.timings.waited.append(time.perf_counter() - start)
        self._running = not self._sync
        self._saver.save(self._folder / str(step), args=self._arguments(state))
        self._called = time.perf_counter()
        self.timings.call.append(self._called - start)

    def _done(self) -> None:
        self.timings.background.append(time.perf_counter() - self._called)
        self._running = False

    def busy(self) -> bool:
        return self._running

    def finish(self) -> None:
        if not self._sync:
            self._saver.wait_until_finished()

    def stored(self, step: int) -> Path | None:
        return self._folder / str(step)


class Holdfast:
    """Holdfast's store, which also computes digests of every file and writes a manifest."""

    def __init__(self, writer: WriterName) -> None:
        self.timings = Timings()
        self._writer: WriterName = writer
        self._attempt = 0
        self._store: Store | None = None
        self._folder = Path()
        self._handles: list[Any] = []

    def begin(self, folder: Path) -> None:
        """Use one store for all series, as a training does, because the store keeps memory from save to save."""
        if self._store is None:
            self._folder = folder.parent / f"{folder.name}-run"
            self._store = Store(
                RunFolder(self._folder),
                attempt=1,
                owner=Owner(job_uid="benchmark", namespace="", name="benchmark", attempt=1),
                coordination=LocalCoordination(),
                settings=StoreSettings(writer=self._writer),
            )
            self._store.claim()
        else:
            for old in (self._folder / "1").iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            self._attempt += 1

    def save(self, step: int, state: State) -> None:
        assert self._store is not None
        start = time.perf_counter()
        handle = self._store.save(self._number(step), state)
        self.timings.call.append(time.perf_counter() - start)
        self.timings.waited.append(handle.timings["wait_seconds"])
        self._handles.append((handle, self.timings.call[-1]))

    def busy(self) -> bool:
        return any(not handle.done() for handle, _ in self._handles)

    def finish(self) -> None:
        for handle, call in self._handles:
            handle.result(_LIMIT_SECONDS)
            timings = handle.timings
            self.timings.background.append(timings["total_seconds"] - call)
            self.timings.sealing.append(timings.get("digest_seconds", 0.0) + timings.get("manifest_seconds", 0.0))
        self._handles = []

    def stored(self, step: int) -> Path | None:
        return self._folder / "1" / str(self._number(step)) / "state"

    def _number(self, step: int) -> int:
        """Return a number that is new to the store, which commits a step only once per attempt."""
        return self._attempt * 1_000_000 + step


GATES: dict[str, Callable[[], Arm]] = {"none": Nothing, "asleep 50 ms": Asleep}
"""Control arms, whose loss is known."""
ARMS: dict[str, Callable[[], Arm]] = {
    **GATES,
    "orbax sync": lambda: Orbax(None, sync=True),
    "orbax async": lambda: Orbax(None),
    "orbax async tuned": lambda: Orbax({"use_ocdbt": True, "use_zarr3": False, "use_compression": False}),
    "orbax async tuned zarr3": lambda: Orbax({"use_ocdbt": True, "use_zarr3": True, "use_compression": False}),
    "orbax async tuned files": lambda: Orbax({"use_ocdbt": False, "use_zarr3": False, "use_compression": False}),
    "copy": Copy,
    "ours, orbax writes": lambda: Holdfast("orbax"),
    "ours": lambda: Holdfast("direct"),
}


def make_state(size_bytes: int, leaves: int) -> State:
    """Return ``leaves`` arrays of random float32, which compression hardly shrinks."""
    count = max(1, size_bytes // 4 // leaves)
    make = jax.jit(jax.random.normal, static_argnums=1)
    return {f"layer_{n:05}": make(jax.random.key(n), (count,)) for n in range(leaves)}


def make_step() -> Callable[[State], State]:
    """Return a jitted stand-in for a training step, which reads and writes the whole state in place."""

    def step(state: State) -> State:
        return {name: leaf * jnp.float32(0.999) + jnp.float32(0.001) for name, leaf in state.items()}

    jitted: Callable[[State], State] = jax.jit(step, donate_argnums=0)
    return jitted


def digests(state: Any) -> dict[str, str]:
    """Return the xxh3-128 of the bytes of each leaf."""
    return {name: xxhash.xxh3_128_hexdigest(np.ascontiguousarray(leaf).data) for name, leaf in state.items()}


def wrong_leaves(arm: Arm, step: int, leaves: dict[str, str]) -> list[str]:
    """Return the leaves whose bytes plain Orbax does not restore. ``leaves``: the digests at the save, by name."""
    stored = arm.stored(step)
    if stored is None:
        return []
    found = digests(ocp.PyTreeCheckpointer().restore(stored))
    return [f"save {step}: {name}" for name in {*found, *leaves} if found.get(name) != leaves.get(name)]
