"""Reads the body of a sync request. Any pod may send one, so types are strict, and numbers and sizes are bounded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import pydantic

from holdfast_contract import sync

MAX_TEXT: Final = sync.MAX_LAST_LINES_BYTES
MAX_KEYS: Final = 64
MAX_INTEGER: Final = 2**53

_REPORT: Final = pydantic.TypeAdapter(sync.Report)


class BodyError(ValueError):
    """The body is not a valid report. The message names the field, the value found and what is allowed."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        """Build the message.

        Args:
            field: dotted path of the wrong value, such as ``report.progress.last_completed_step``.
            found: the wrong value; long ones are cut.
            allowed: a description of the values that are allowed.
        """
        self.field, self.found, self.allowed = field, repr(found)[:200], allowed
        super().__init__(f"{field}: found {self.found}, allowed: {allowed}")


def parse_report(body: bytes) -> sync.Report:
    """The report in a request's body. Unknown fields are ignored: a newer agent may send more.

    Raises:
        BodyError: the body is not a valid report; names the field.
    """
    try:
        report = _REPORT.validate_json(body, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["report", *map(str, first["loc"])])
        raise BodyError(where, first.get("input"), first["msg"]) from None
    except RecursionError:
        raise BodyError("report", "a deeply nested value", "a report") from None
    if report.protocol != sync.PROTOCOL:
        raise BodyError("report.protocol", report.protocol, str(sync.PROTOCOL))
    _check_sizes(report, "report")
    return report


def _check_sizes(value: Any, where: str) -> None:
    """Bound every list, text and number: types alone do not."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _check_sizes(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, tuple):
        _require(len(value) <= sync.MAX_LIST, where, f"{len(value)} items", f"at most {sync.MAX_LIST} items")
        for index, item in enumerate(value):
            _check_sizes(item, f"{where}.{index}")
    elif isinstance(value, dict):
        _require(len(value) <= MAX_KEYS, where, f"{len(value)} keys", f"at most {MAX_KEYS} keys")
        for key, item in value.items():
            _check_sizes(key, where)
            _check_sizes(item, f"{where}.{key[:63]}")
    elif isinstance(value, str):
        size = len(value.encode(errors="surrogatepass"))
        _require(size <= MAX_TEXT, where, f"{size} bytes", f"at most {MAX_TEXT} bytes")
    elif isinstance(value, float):
        _require(math.isfinite(value), where, value, "a finite number")
    elif isinstance(value, int):
        _require(0 <= value <= MAX_INTEGER, where, value, "0 to 2**53")


def _require(holds: bool, where: str, found: object, allowed: str) -> None:  # noqa: FBT001  reads as an assertion
    if not holds:
        raise BodyError(where, found, allowed)
