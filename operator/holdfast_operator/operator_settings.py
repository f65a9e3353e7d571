"""The operator's settings, read from the environment and checked once at the start. Only ``__main__`` reads it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from holdfast_contract import defaults, keys
from holdfast_operator.decide.facts import DEFAULT_PROGRESS_SECONDS

PREFIX: Final = "HOLDFAST_OPERATOR_"
ORPHAN_SECONDS: Final = (10, 604_800)
"""Shortest and longest. A Lease needs 15 s to pass to another replica; after a week nobody repairs the operator."""
PROGRESS_SECONDS: Final = (1, 3600)
"""Shortest and longest. Below 30 s a thousand jobs load the API server; live figures are in the metrics."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
TLS_FILES: Final = ("tls.crt", "tls.key", "ca.crt")

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

T = TypeVar("T")


class OperatorSettingsError(ValueError):
    """A setting is missing or wrong. The message names the variable, the value found and the values allowed."""

    def __init__(self, variable: str, found: str | None, allowed: str) -> None:
        """Build the message.

        Args:
            variable: name of the environment variable.
            found: its value; None if it is not set.
            allowed: a description of the values that work.
        """
        self.variable, self.found, self.allowed = variable, found, allowed
        missing = f"`{variable}` is required but not set"
        super().__init__(missing if found is None else f"{variable}: found {found!r}, allowed: {allowed}")


@dataclass(frozen=True)
class OperatorSettings:
    """The operator's settings; see ``from_environment`` for the variables."""

    namespace: str
    pod_name: str
    pod_ip: str
    control_url: str
    tls_dir: Path
    lease_name: str
    watch_namespaces: tuple[str, ...]
    """Empty: all."""
    log_level: int
    orphan_seconds: int = defaults.ORPHAN_SECONDS
    progress_seconds: int = round(DEFAULT_PROGRESS_SECONDS)
    control_port: int = keys.CONTROL_PORT
    health_port: int = keys.HEALTH_PORT
    metrics_port: int = keys.METRICS_PORT
    bind_address: str | None = None


def from_environment(environment: Mapping[str, str]) -> OperatorSettings:
    """Read the variables HOLDFAST_OPERATOR_*. Port 0 means any free port; an empty bind address, all interfaces.

    Raises:
        OperatorSettingsError: names the first variable that is missing or wrong.
    """

    def read(name: str, parse: Callable[[str, str], T], default: str | None = None) -> T:
        variable = PREFIX + name
        text = environment.get(variable, default)
        if text is None:
            raise OperatorSettingsError(variable, None, "any value")
        return parse(variable, text)

    return OperatorSettings(
        namespace=read("NAMESPACE", _namespace),
        pod_name=read("POD_NAME", _dns_name),
        pod_ip=read("POD_IP", _non_empty),
        control_url=read("CONTROL_URL", _control_url),
        tls_dir=read("TLS_DIR", _tls_dir),
        lease_name=read("LEASE_NAME", _dns_name),
        watch_namespaces=read("WATCH_NAMESPACES", _namespaces, ""),
        log_level=read("LOG_LEVEL", _log_level, "info"),
        orphan_seconds=read("ORPHAN_SECONDS", _orphan_seconds, str(defaults.ORPHAN_SECONDS)),
        progress_seconds=read("PROGRESS_SECONDS", _progress_seconds, str(round(DEFAULT_PROGRESS_SECONDS))),
        control_port=read("CONTROL_PORT", _port, str(keys.CONTROL_PORT)),
        health_port=read("HEALTH_PORT", _port, str(keys.HEALTH_PORT)),
        metrics_port=read("METRICS_PORT", _port, str(keys.METRICS_PORT)),
        bind_address=read("BIND_ADDRESS", lambda _variable, text: text or None, ""),
    )


def _non_empty(variable: str, text: str) -> str:
    if not text:
        raise OperatorSettingsError(variable, text, "a non-empty value")
    return text


def _namespace(variable: str, text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise OperatorSettingsError(variable, text, "a namespace: 1 to 63 of a-z, 0-9 and '-', no '-' at the ends")
    return text


def _namespaces(variable: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_namespace(variable, name) for name in text.split(","))) if text else ()


def _dns_name(variable: str, text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise OperatorSettingsError(variable, text, "an object name: 1 to 253 of a-z, 0-9, '-' and '.'")
    return text


def _control_url(variable: str, text: str) -> str:
    allowed = "https://<host>[:<port>] without a path"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise OperatorSettingsError(variable, text, allowed) from None
    if parts.scheme != "https" or not parts.hostname or parts.path not in {"", "/"} or parts.query or parts.username:
        raise OperatorSettingsError(variable, text, allowed)
    return text.rstrip("/")


def _tls_dir(variable: str, text: str) -> Path:
    folder = Path(text)
    missing = [name for name in TLS_FILES if not (folder / name).is_file()]
    if not text or missing:
        raise OperatorSettingsError(
            variable, text, f"a folder with {', '.join(TLS_FILES)} (missing: {', '.join(missing)})"
        )
    return folder


def _log_level(variable: str, text: str) -> int:
    if text.lower() not in LOG_LEVELS:
        raise OperatorSettingsError(variable, text, " | ".join(LOG_LEVELS))
    return logging.getLevelNamesMapping()[text.upper()]


def _orphan_seconds(variable: str, text: str) -> int:
    return _seconds(variable, text, ORPHAN_SECONDS)


def _progress_seconds(variable: str, text: str) -> int:
    return _seconds(variable, text, PROGRESS_SECONDS)


def _seconds(variable: str, text: str, limits: tuple[int, int]) -> int:
    shortest, longest = limits
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not shortest <= int(text) <= longest:
        raise OperatorSettingsError(variable, text, f"whole seconds, {shortest} to {longest}")
    return int(text)


def _port(variable: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise OperatorSettingsError(variable, text, "a port, 0 to 65535")
    return int(text)
