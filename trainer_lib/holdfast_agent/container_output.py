"""The trainer's output, copied to the container's own in whole lines, and the agent's own lines beside it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Final

from holdfast_contract.sync import MAX_LAST_LINES_BYTES

_CHUNK_BYTES: Final = 64 * 1024
_MAX_HELD_BYTES: Final = 64 * 1024
"""A line longer than this is copied in pieces."""


def log(text: str) -> None:
    """Write one line of the agent itself to the container's log. Never fails: a closed log must not stop training."""
    _write_all(2, f"holdfast: {text}\n".encode(errors="replace"))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(descriptor, view) :]


class Relay:
    """A thread that copies one pipe of the trainer to one descriptor of the container until the pipe ends.

    It writes whole lines, so that stdout and stderr do not interleave within a line.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._tail = b""
        self._thread = threading.Thread(target=self._run, name=f"relay-{target}", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether the pipe has ended and everything was copied."""
        return not self._thread.is_alive()

    @property
    def last_lines(self) -> str:
        """The end of the output, cut at a line where possible, at most MAX_LAST_LINES_BYTES long."""
        return last_lines(self._tail)

    def _run(self) -> None:
        held = b""
        while chunk := self._read():
            self._tail = (self._tail + chunk)[-2 * MAX_LAST_LINES_BYTES :]
            held += chunk
            # Progress bars end their lines with a carriage return only.
            cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            if cut == 0 and len(held) > _MAX_HELD_BYTES:
                cut = len(held)
            _write_all(self._target, held[:cut])
            held = held[cut:]
        if held:
            _write_all(self._target, held + b"\n")
        os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, _CHUNK_BYTES)
        except OSError:
            return b""


def last_lines(data: bytes, limit_bytes: int = MAX_LAST_LINES_BYTES) -> str:
    """The last whole lines of ``data`` that fit into ``limit_bytes``, or the end of the last if even it does not."""
    text = data.decode(errors="replace").rstrip()
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    end = encoded[-limit_bytes:]
    newline = end.find(b"\n")
    return (end[newline + 1 :] if newline >= 0 else end).decode(errors="ignore")


def write_termination_log(path: str, summary: str, lines: str) -> None:
    """Write the termination message for the kubelet. Does nothing where the kubelet has not created the file.

    Args:
        path: The container's terminationMessagePath.
        summary: First line; cut to 1024 bytes.
        lines: The trainer's last lines; cut at the front so that the message fits MAX_LAST_LINES_BYTES.
    """
    message = summary.encode(errors="replace")[:1024]
    room = MAX_LAST_LINES_BYTES - len(message) - 1
    tail = last_lines(lines.encode(errors="replace"), room).encode()
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            _write_all(descriptor, message + (b"\n" + tail if tail else b""))
        finally:
            os.close(descriptor)


def flush() -> None:
    """Flush Python's own buffers before an exit that skips the interpreter's shutdown."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
