"""Training text that every machine has: the source of the Python standard library, as bytes, in a fixed order."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt

VOCABULARY: Final = 256
MAX_CORPUS_BYTES: Final = 4_000_000


def read_corpus(max_bytes: int = MAX_CORPUS_BYTES) -> npt.NDArray[np.uint8]:
    """Return the first ``max_bytes`` of the standard library's modules, sorted by name. Shape: (bytes,)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if "site-packages" not in path.parts:
            text += path.read_bytes()
        if len(text) >= max_bytes:
            break
    return np.frombuffer(bytes(text[:max_bytes]), np.uint8)


class Batches:
    """Endless batches of random windows of a corpus. Batch n depends only on the seed and n.

    ``next`` returns int32 of shape (batch, context + 1) with ``sharding``; each process makes only its own rows. The
    position is the whole state, so a restored iterator continues with exactly the next batch.
    """

    def __init__(
        self, corpus: npt.NDArray[np.uint8], *, batch: int, context: int, seed: int, sharding: jax.sharding.Sharding
    ) -> None:
        self._corpus, self._sharding, self._seed = corpus, sharding, seed
        self._shape = (batch, context + 1)
        self.position = 0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> jax.Array:
        batch, length = self._shape
        random = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, self.position]))
        starts = random.integers(0, len(self._corpus) - length, size=batch)
        self.position += 1

        def rows(index: tuple[slice, ...] | None) -> npt.NDArray[np.int32]:
            index = index or (slice(None), slice(None))  # None: the whole array
            windows = [self._corpus[start : start + length] for start in starts[index[0]]]
            return np.stack(windows).astype(np.int32)[:, index[1]]

        return jax.make_array_from_callback(self._shape, self._sharding, rows)

    def skip(self) -> None:
        """Skip one batch."""
        self.position += 1

    def get_state(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return {"seed": self._seed, "position": self.position}

    def reposition(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue with another number of processes. Each process draws the whole batch, so all positions are equal."""
        if any(state != states[0] for state in states):
            raise ValueError(f"states: found {list(states)!r:.200}, allowed: the same position on every process")
        self.set_state(states[0])

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a position. Raises ValueError if it belongs to another seed."""
        if state["seed"] != self._seed:
            raise ValueError(f"seed: found {state['seed']} in the checkpoint, allowed: {self._seed}, this run's seed")
        self.position = state["position"]
