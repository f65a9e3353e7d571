"""Errors of requests to the API server: one class per answer that callers treat differently.

The ``kubernetes`` client has one ``ApiException`` for all of them. It tells neither AlreadyExists from Conflict nor a
missing answer from a refusal, so these classes stay.
"""

from __future__ import annotations

import json
from typing import Final


class KubeError(Exception):
    """A request failed."""

    def __init__(self, what: str, status: int = 0, reason: str = "", message: str = "") -> None:
        """Build the message; every argument is also an attribute.

        Args:
            what: the request, such as ``create pods default/train-0-1``.
            status: HTTP status; 0 if there was no answer (a write may have happened).
            reason: the API server's machine-readable reason, such as ``Conflict``.
            message: the API server's sentence for people.
        """
        self.what, self.status, self.reason, self.message = what, status, reason, message
        super().__init__(f"{what}: {status or 'no answer'} {reason}: {message}".rstrip(": "))


class Unauthorized(KubeError):
    """401: the operator's own credentials are not accepted, for example an expired token."""


class Forbidden(KubeError):
    """403: the ServiceAccount lacks a permission, or an admission check (quota, pod security) refused."""


class NotFound(KubeError):
    """404: there is no such object, or no such resource."""


class Conflict(KubeError):
    """409: the object changed since it was read, or a precondition (UID) does not hold."""


class AlreadyExists(KubeError):
    """409 on create: an object of this name exists; the caller decides whether it is the right one."""


class Invalid(KubeError):
    """422: the object breaks the schema or a rule; the message names the field."""


class TooManyRequests(KubeError):
    """429: the API server or a disruption budget asks to wait ``retry_after_seconds``."""

    retry_after_seconds: float = 1.0


class Unavailable(KubeError):
    """No answer within the deadline, a broken connection, or a 5xx. A write may have happened, so read again."""


_BY_STATUS: Final[dict[int, type[KubeError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
    429: TooManyRequests,
}


def from_response(what: str, status: int, body: bytes, retry_after: str | None) -> KubeError:
    """The error for a response with a status of 400 or more.

    Args:
        what: the request, for the message.
        status: HTTP status.
        body: a ``Status`` object as JSON; anything else is tolerated.
        retry_after: the header Retry-After, in seconds, if it was sent.

    Returns:
        An error of the class that fits the status and the reason.
    """
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
