"""The position of a data iterator, as bytes of one process.

Any object with ``get_state()`` and ``set_state(state)`` will do, Grain's iterators among them. The state may be bytes
or anything that JSON holds without loss.

A position belongs to a process of a world of a certain size: with another number of processes it names other data. So it
is given back only where the number is the same; elsewhere the iterator must say itself what all positions together mean,
by ``reposition(states)``, or the restore is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import RestoreError


@runtime_checkable
class DataIterator(Protocol):
    """An iterator that can say where it is and be put there again."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


@runtime_checkable
class Repositionable(DataIterator, Protocol):
    """An iterator that can go on from the positions of a world with another number of processes."""

    def reposition(self, states: Sequence[Any]) -> None:
        """Go on after everything that the processes in the positions ``states`` have consumed, and nothing else."""


def require_iterator(data: object) -> None:
    """Raises TypeError unless ``data`` is None or can tell and take its position."""
    if data is not None and not isinstance(data, DataIterator):
        raise TypeError(
            f"data: found {type(data).__name__}, allowed: an object with get_state() and set_state(state), or None"
        )


def capture(data: DataIterator | None) -> bytes | None:
    """The iterator's position now, None if there is no iterator.

    Raises:
        TypeError: get_state() returned what neither is bytes nor survives JSON.
    """
    if data is None:
        return None
    state = data.get_state()
    if isinstance(state, bytes | bytearray | memoryview):
        return json.dumps({"base64": base64.b64encode(state).decode()}).encode()
    try:
        text = json.dumps({"json": state}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"data.get_state(): found {type(state).__name__} ({error}), allowed: bytes or JSON") from None
    if json.loads(text)["json"] != state:
        raise TypeError(
            f"data.get_state(): found {state!r:.200}, which JSON changes; allowed: bytes, or what JSON keeps"
        )
    return text.encode()


def reinstate(data: DataIterator | None, stored: bytes | None, *, checkpoint: str) -> None:
    """Put the iterator where ``stored`` says.

    Raises:
        RestoreError: only one of iterator and stored position is there, or the position cannot be read.
    """
    if data is None and stored is None:
        return
    target, position = _both(data, stored, checkpoint)
    target.set_state(_state_of(position, checkpoint))


def reinstate_elsewhere(
    data: DataIterator | None, stored: Sequence[bytes | None], *, process_count: int, checkpoint: str
) -> None:
    """Put the iterator of a process among ``process_count`` where the positions of another number of processes say.

    Raises:
        RestoreError: as ``reinstate``, or the iterator cannot do that.
    """
    if data is None and not any(stored):
        return
    states = [_state_of(_both(data, one, checkpoint)[1], checkpoint) for one in stored]
    if not isinstance(data, Repositionable):
        raise RestoreError(
            f"{checkpoint}: holds the data positions of {len(stored)} process(es), this run has {process_count}, and "
            f"{type(data).__name__} cannot say what they mean there; start {len(stored)} process(es), or give the "
            "iterator a method reposition(states), which takes all old positions"
        )
    data.reposition(states)


def _both(data: DataIterator | None, stored: bytes | None, checkpoint: str) -> tuple[DataIterator, bytes]:
    if data is None:
        raise RestoreError(f"{checkpoint}: holds a data position, but restore was called without data")
    if stored is None:
        raise RestoreError(f"{checkpoint}: holds no data position for this process, but restore was called with data")
    return data, stored


def _state_of(stored: bytes, checkpoint: str) -> Any:
    try:
        envelope = json.loads(stored)
        return base64.b64decode(envelope["base64"]) if "base64" in envelope else envelope["json"]
    except (ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"{checkpoint}: the data position cannot be read: {error!r}") from None
