"""What the API server may answer instead of a result. One class per answer that callers treat differently."""

from __future__ import annotations

import json
from typing import Final


class KubeError(Exception):
    """A request that did not succeed.

    Attributes:
        status: HTTP status, 0 if there was no answer (the write may or may not have happened).
        reason: the API server's machine-readable reason, such as ``Conflict``.
        message: the API server's sentence for people.
        what: the request, such as ``create pods default/train-0-1``.
    """

    def __init__(self, what: str, status: int = 0, reason: str = "", message: str = "") -> None:
        self.what, self.status, self.reason, self.message = what, status, reason, message
        super().__init__(f"{what}: {status or 'no answer'} {reason}: {message}".rstrip(": "))


class Unauthorized(KubeError):
    """401: our own credentials are not accepted (expired token)."""


class Forbidden(KubeError):
    """403: the ServiceAccount lacks a permission, or admission (quota, pod security) refused."""


class NotFound(KubeError):
    """404: no such object (or resource)."""


class Conflict(KubeError):
    """409: the object changed since it was read, or a precondition (UID) does not hold."""


class AlreadyExists(KubeError):
    """409 on create: an object of this name is there; the caller decides whether it is ours."""


class Invalid(KubeError):
    """422: the object breaks the schema or a rule; the message names the field."""


class TooManyRequests(KubeError):
    """429: the API server (or a disruption budget) wants us to wait ``retry_after_seconds``."""

    retry_after_seconds: float = 1.0


class Unavailable(KubeError):
    """No answer within the deadline, a broken connection, or a 5xx. A write may have happened: read again."""


_BY_STATUS: Final[dict[int, type[KubeError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
    429: TooManyRequests,
}


def from_response(what: str, status: int, body: bytes, retry_after: str | None) -> KubeError:
    """The error for a response of 400 or above; understands ``Status`` objects and survives anything else."""
    reason, message = _read_status(body)
    cls = _BY_STATUS.get(status, Unavailable if status >= 500 else KubeError)
    if cls is Conflict and reason == "AlreadyExists":
        cls = AlreadyExists
    error = cls(what, status, reason, message)
    if isinstance(error, TooManyRequests):
        error.retry_after_seconds = _seconds(retry_after, error.retry_after_seconds)
    return error


def _read_status(body: bytes) -> tuple[str, str]:
    try:
        raw = json.loads(body)
    except ValueError:
        return "", body[:300].decode(errors="replace")
    if not isinstance(raw, dict):
        return "", ""
    return str(raw.get("reason") or ""), str(raw.get("message") or "")


def _seconds(text: str | None, default: float) -> float:
    try:
        return max(0.0, min(float(text), 300.0)) if text is not None else default
    except ValueError:
        return default
