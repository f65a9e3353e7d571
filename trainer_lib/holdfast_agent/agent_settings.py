"""The settings that the operator wrote into this container's environment, read and checked once at the start."""

from __future__ import annotations

import math
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast_contract import defaults, keys

MAX_SOCKET_PATH_BYTES: Final = 107
"""The longest path that fits into a unix socket address on Linux."""


class AgentSettingsError(ValueError):
    """A setting that cannot work. ``field`` is the variable or argument; the message says what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)

    @classmethod
    def wrong_value(cls, field: str, found: object, allowed: str) -> AgentSettingsError:
        """The error for a value that is set.

        Args:
            field: The variable or argument.
            found: The value; the message shows at most 200 characters of it.
            allowed: What is allowed instead, in words.
        """
        return cls(field, f"{field}: found {found!r:.200}, allowed: {allowed}")

    @classmethod
    def not_set(cls, field: str) -> AgentSettingsError:
        """The error for a variable that is absent or empty."""
        return cls(field, f"`{field}` is required but not set; the operator writes it into the pod")


@dataclass(frozen=True)
class AgentSettings:
    """Everything that the agent must know before its first request to the operator. Limits of None do not apply."""

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
        """The directory of the socket and of this pod's compile cache."""
        return os.path.dirname(self.socket_path)


def from_environment(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """The settings from the arguments ``-- COMMAND [ARGUMENT ...]`` and the environment. Raises AgentSettingsError."""
    host, port = _control_address(_required(environment, keys.ENV_CONTROL_URL))
    return AgentSettings(
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
        raise AgentSettingsError.wrong_value(
            "arguments", list(arguments), f"-- COMMAND [ARGUMENT ...] after {keys.AGENT_MODULE}"
        )
    return tuple(arguments[1:])


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise AgentSettingsError.not_set(name)
    return value


def _control_address(url: str) -> tuple[str, int]:
    allowed = "https://HOST:PORT"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AgentSettingsError.wrong_value(keys.ENV_CONTROL_URL, url, allowed) from None
    if parts.scheme != "https" or not host or parts.path not in {"", "/"} or parts.query or parts.username:
        raise AgentSettingsError.wrong_value(keys.ENV_CONTROL_URL, url, allowed)
    return host, port or keys.CONTROL_PORT


def _index(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise AgentSettingsError.wrong_value(keys.ENV_REPLICA_INDEX, text, "a whole number from 0")
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
        raise AgentSettingsError.wrong_value(name, text, "seconds, more than 0")
    return value


def _socket_path(environment: Mapping[str, str]) -> str:
    path = environment.get(keys.ENV_AGENT_SOCKET) or f"{keys.RUNTIME_MOUNT}/{keys.AGENT_SOCKET_NAME}"
    if not path.startswith("/") or len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise AgentSettingsError.wrong_value(
            keys.ENV_AGENT_SOCKET, path, f"an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes (a socket address)"
        )
    return path
