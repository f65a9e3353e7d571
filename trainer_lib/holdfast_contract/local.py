"""The messages between a trainer process and its agent: JSON lines over a unix stream socket.

The library connects once per process. Each line is ``{"type": <name>, "body": {...}}``. Losing the socket never stops
training: the library continues, and the agent then observes only the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from holdfast_contract import codec
from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.sync import Progress, SaveReport, SaveRequest

MAX_LINE_BYTES: Final = 256 * 1024
"""The agent ignores a longer line of the trainer."""


@dataclass(frozen=True)
class Hello:
    """The first line of a trainer, which names its attempt. The agent drops a connection of another attempt."""

    attempt: int
    pid: int


@dataclass(frozen=True)
class TrainerUpdate:
    """Library to agent: the whole state, sent when it changes, at most a few times a second.

    ``buckets`` holds seconds per ``reasons.Bucket``, cumulative in this process; they add up to its life so far. The
    other fields mean the same as in ``sync.Report``, to which the agent copies them.
    """

    progress: Progress | None = None
    newest: CheckpointRef | None = None
    saves: tuple[SaveReport, ...] = ()
    restored: CheckpointRef | None = None
    restore_done: bool = False
    rejected: tuple[Rejection, ...] = ()
    buckets: dict[str, float] = field(default_factory=dict)
    storage_error: str = ""


@dataclass(frozen=True)
class AgentCommand:
    """Agent to library: the current save request, sent when it changes.

    None withdraws the request. The library then reports ``cancelled`` if it has not begun the save.
    """

    save: SaveRequest | None = None


Message = Hello | TrainerUpdate | AgentCommand
_TYPES: Final[dict[str, type[Message]]] = {cls.__name__: cls for cls in (Hello, TrainerUpdate, AgentCommand)}


def to_line(message: Message) -> bytes:
    """A message as one line of the socket protocol, including the newline."""
    body = {"type": type(message).__name__, "body": codec.to_jsonable(message)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """The message in one line of the socket protocol. Raises codec.CodecError."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise codec.CodecError("line", line[:80], f"JSON ({error})") from None
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise codec.CodecError("line.type", kind, " | ".join(_TYPES))
    return codec.from_jsonable(_TYPES[kind], raw.get("body"))
