"""One line per record: time, level, what, and which job and attempt it is about."""

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
    """Records made inside name this job and attempt."""
    token = _context.set({"namespace": namespace, "job": job, "attempt": attempt})
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """JSON with sorted importance: time, level, logger, message, then the fields that are known."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, a trace included."""
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
    """Send everything to standard error, one line each; libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
