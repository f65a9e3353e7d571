"""Log records as one line of JSON each, with the job and the attempt that they concern."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

FIELDS: Final = ("namespace", "job", "attempt", "pod", "failures")
QUIET: Final = ("kopf", "urllib3", "aiohttp", "asyncio", "kubernetes")

_context: ContextVar[dict[str, Any] | None] = ContextVar("job_context", default=None)


@contextlib.contextmanager
def job_context(namespace: str, job: str, attempt: int | None) -> Iterator[None]:
    """Log records made inside this context name the job and the attempt.

    Args:
        namespace: the job's namespace.
        job: the job's name.
        attempt: number of the newest attempt; None if it is unknown.
    """
    token = _context.set({"namespace": namespace, "job": job, "attempt": attempt})
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, then the known FIELDS."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, including a traceback."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = _context.get() or {}
        for name in FIELDS:
            value = getattr(record, name, known.get(name))
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: int) -> None:
    """Send all records to standard error; those of the libraries in QUIET only from level WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
