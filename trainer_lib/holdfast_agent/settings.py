"""What the operator wrote into this container's environment, read once at start and checked there."""

from __future__ import annotations

import math
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast_contract import defaults, keys

MAX_SOCKET_PATH_BYTES: Final = 107
"""Linux: the longest path that fits a unix socket address."""


class SettingsError(ValueError):
    """A setting that cannot work: ``field`` is the variable or argument, with what was found and what is allowed."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {found!r:.200}, allowed: {allowed}")


@dataclass(frozen=True)
class Settings:
    """Everything that the agent must know before it hears from the operator."""

    command: tuple[str, ...]
    control_host: str
    control_port: int
    control_ca: str  # PEM
    token_file: str
    process_index: int
    checkpoint_path: str
    run: str
    socket_path: str
    termination_log: str = keys.TERMINATION_LOG
    grace_seconds: float = defaults.GRACE_SECONDS
    orphan_seconds: float = defaults.ORPHAN_SECONDS
    hang_step_seconds: float | None = None
    hang_start_seconds: float | None = None

    @property
    def runtime_directory(self) -> str:
        """Where the socket and this pod's compile cache live."""
        return os.path.dirname(self.socket_path)


def from_environment(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from ``-- CMD ARGS...`` and the environment. Raises SettingsError."""
    host, port = _control_address(_required(environment, keys.ENV_CONTROL_URL))
    return Settings(
        command=_command(arguments),
        control_host=host,
        control_port=port,
        control_ca=_required(environment, keys.ENV_CONTROL_CA),
        token_file=_required(environment, keys.ENV_TOKEN_FILE),
        process_index=_index(_required(environment, keys.ENV_REPLICA_INDEX)),
        checkpoint_path=_required(environment, keys.ENV_CHECKPOINT_PATH),
        run=_required(environment, keys.ENV_RUN),
        socket_path=_socket_path(environment),
        termination_log=environment.get(keys.ENV_TERMINATION_LOG) or keys.TERMINATION_LOG,
        grace_seconds=_seconds(environment, keys.ENV_GRACE_SECONDS) or defaults.GRACE_SECONDS,
        orphan_seconds=_seconds(environment, keys.ENV_ORPHAN_SECONDS) or defaults.ORPHAN_SECONDS,
        hang_step_seconds=_seconds(environment, keys.ENV_HANG_STEP_SECONDS),
        hang_start_seconds=_seconds(environment, keys.ENV_HANG_START_SECONDS),
    )


def _command(arguments: Sequence[str]) -> tuple[str, ...]:
    if len(arguments) < 2 or arguments[0] != "--":
        raise SettingsError("arguments", list(arguments), f"-- COMMAND [ARGUMENT ...] after {keys.AGENT_MODULE}")
    return tuple(arguments[1:])


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SettingsError(name, environment.get(name), "a value; the operator writes it into the pod")
    return value


def _control_address(url: str) -> tuple[str, int]:
    allowed = "https://HOST:PORT"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(keys.ENV_CONTROL_URL, url, allowed) from None
    if parts.scheme != "https" or not host or parts.path not in {"", "/"} or parts.query or parts.username:
        raise SettingsError(keys.ENV_CONTROL_URL, url, allowed)
    return host, port or keys.CONTROL_PORT


def _index(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(keys.ENV_REPLICA_INDEX, text, "a whole number from 0")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise SettingsError(name, text, "seconds, more than 0")
    return value


def _socket_path(environment: Mapping[str, str]) -> str:
    path = environment.get(keys.ENV_AGENT_SOCKET) or f"{keys.RUNTIME_MOUNT}/{keys.AGENT_SOCKET_NAME}"
    if not path.startswith("/") or len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise SettingsError(
            keys.ENV_AGENT_SOCKET, path, f"an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes (a socket address)"
        )
    return path
