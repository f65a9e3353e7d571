"""The messages between a trainer process and its agent: JSON lines over a unix stream socket.

The library connects once per process. Each line is ``{"type": <name>, "body": {...}}``. Losing the socket never stops
training: the library goes on and the agent sees the process only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from holdfast_contract import codec
from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.sync import Progress, SaveReport, SaveRequest

MAX_LINE_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Hello:
    """First line of a trainer: which attempt it runs in. The agent drops a connection of another attempt."""

    attempt: int
    pid: int


@dataclass(frozen=True)
class TrainerUpdate:
    """Library to agent: the whole state, each time it changes (coalesced to a few a second). Seconds are cumulative
    in this process and add up to its life so far.
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
    """Agent to library: the current save request, or None to withdraw it (the library answers `cancelled` if it had
    not begun). Repeated whenever it changes.
    """

    save: SaveRequest | None = None


Message = Hello | TrainerUpdate | AgentCommand
_TYPES: Final[dict[str, type[Message]]] = {cls.__name__: cls for cls in (Hello, TrainerUpdate, AgentCommand)}


def to_line(message: Message) -> bytes:
    """One line of the socket protocol, newline included."""
    body = {"type": type(message).__name__, "body": codec.to_jsonable(message)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """Parse one line. Raises codec.CodecError."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise codec.CodecError("line", line[:80], f"JSON ({error})") from None
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise codec.CodecError("line.type", kind, " | ".join(_TYPES))
    return codec.from_jsonable(_TYPES[kind], raw.get("body"))
