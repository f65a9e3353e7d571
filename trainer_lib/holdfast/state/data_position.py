"""The position of a data iterator, as bytes, one per process.

Any object with ``get_state()`` and ``set_state(state)`` works, for example Grain's iterators. The state is bytes, or a value
that JSON represents without loss.

A position is valid only for the number of processes it was saved with; with another number it names other data. With the same
number, each process gets its own position back. With another number, the iterator must interpret all old positions together
in ``reposition(states)``, otherwise the restore is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import RestoreError


@runtime_checkable
class DataIterator(Protocol):
    """An iterator that can return its position and be set to it again."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


@runtime_checkable
class Repositionable(DataIterator, Protocol):
    """An iterator that can continue from the positions of another number of processes."""

    def reposition(self, states: Sequence[Any]) -> None:
        """Continue after exactly the data that the processes at the positions ``states`` have consumed."""


def require_iterator(data: object) -> None:
    """Raise TypeError unless ``data`` is None or has ``get_state`` and ``set_state``."""
    if data is not None and not isinstance(data, DataIterator):
        raise TypeError(
            f"data: found {type(data).__name__}, allowed: an object with get_state() and set_state(state), or None"
        )


def capture(data: DataIterator | None) -> bytes | None:
    """The iterator's position as bytes; None if there is no iterator.

    Raises:
        TypeError: get_state() returned neither bytes nor a value that JSON represents without loss.
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
            f"data.get_state(): found {state!r:.200}, which JSON changes; allowed: bytes, or a value that JSON represents without loss"
        )
    return text.encode()


def reinstate(data: DataIterator | None, stored: bytes | None, *, checkpoint: str) -> None:
    """Set the iterator to a stored position.

    Args:
        data: the iterator of this process.
        stored: the position that this process saved.
        checkpoint: name of the checkpoint, for errors.

    Raises:
        RestoreError: only one of iterator and position exists, or the position cannot be read.
    """
    if data is None and stored is None:
        return
    target, position = _both(data, stored, checkpoint)
    target.set_state(_state_of(position, checkpoint))


def reinstate_elsewhere(
    data: DataIterator | None, stored: Sequence[bytes | None], *, process_count: int, checkpoint: str
) -> None:
    """Set the iterator from the positions of another number of processes.

    Args:
        data: the iterator of this process.
        stored: the positions of all processes that saved, by their numbers then.
        process_count: the number of processes now.
        checkpoint: name of the checkpoint, for errors.

    Raises:
        RestoreError: as ``reinstate``, or the iterator has no ``reposition``.
    """
    if data is None and not any(stored):
        return
    states = [_state_of(_both(data, one, checkpoint)[1], checkpoint) for one in stored]
    if not isinstance(data, Repositionable):
        raise RestoreError(
            f"{checkpoint}: holds the data positions of {len(stored)} process(es), this run has {process_count}, and "
            f"{type(data).__name__} cannot convert them; start {len(stored)} process(es), or give the iterator a method "
            "reposition(states), which gets all old positions"
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
