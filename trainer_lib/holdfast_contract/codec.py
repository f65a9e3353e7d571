"""Strict conversion between dataclasses and JSON, with the standard library only.

The agent and the library read messages with it. The operator talks to pods that it does not trust and validates the
same dataclasses with pydantic. Unknown fields are ignored on purpose: a newer peer may send more.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class CodecError(ValueError):
    """A message that does not match its type. ``field`` is the dotted path of the wrong value."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        """Build the message.

        Args:
            field: Path of the value, with dots and indices.
            found: The value; the message shows at most 200 characters of it.
            allowed: What is allowed instead, in words.
        """
        self.field = field
        super().__init__(f"{field}: found {found!r:.200}, allowed: {allowed}")


class MissingFieldError(CodecError):
    """A message without a field that its type requires."""

    def __init__(self, field: str) -> None:
        self.field = field
        ValueError.__init__(self, f"`{field}` is required but not set")


def encode(message: object) -> bytes:
    """Compact UTF-8 JSON of a dataclass instance, keys in field order. Raises ValueError: a float is not finite."""
    return json.dumps(to_jsonable(message), separators=(",", ":"), allow_nan=False).encode()


def to_jsonable(value: object) -> Any:
    """A dataclass instance as plain dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(v) for v in value]
    return value


def decode(cls: type[T], data: bytes | str) -> T:
    """The dataclass ``cls``, decoded from JSON.

    Raises:
        CodecError: ``data`` is not JSON, lacks a field or has a value of another type; names the field.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(cls.__name__, data[:80], f"JSON ({error})") from None
    return from_jsonable(cls, raw)


def from_jsonable(cls: type[T], raw: object) -> T:
    """The dataclass ``cls`` built from what ``json.loads`` returned. Raises CodecError."""
    return typing.cast("T", _read(cls, raw, cls.__name__))


def _read(kind: Any, raw: Any, where: str) -> Any:
    if kind is Any:
        return raw
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(kind, raw, where)
    if origin is tuple:
        (item, _) = typing.get_args(kind)
        return tuple(_read(item, v, f"{where}[{i}]") for i, v in enumerate(_expect(list, raw, where, "a list")))
    if origin is dict:
        _, item = typing.get_args(kind)
        return {k: _read(item, v, f"{where}.{k}") for k, v in _expect(dict, raw, where, "an object").items()}
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, raw, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind, raw, where)
    return _read_scalar(kind, raw, where)


def _expect(kind: type, raw: Any, where: str, allowed: str) -> Any:
    if not isinstance(raw, kind):
        raise CodecError(where, raw, allowed)
    return raw


def _read_union(kind: Any, raw: Any, where: str) -> Any:
    options = [a for a in typing.get_args(kind) if a is not type(None)]
    if raw is None and len(options) < len(typing.get_args(kind)):
        return None
    if len(options) != 1:
        raise TypeError(f"{where}: only X | None is a message type, found {kind}")
    return _read(options[0], raw, where)


def _read_dataclass(kind: Any, raw: Any, where: str) -> Any:
    _expect(dict, raw, where, "an object")
    hints = _hints_of(kind)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in raw:
            values[field.name] = _read(hints[field.name], raw[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MissingFieldError(f"{where}.{field.name}")
    try:
        return kind(**values)
    except CodecError:
        raise
    except ValueError as error:
        raise CodecError(where, raw, str(error)) from None


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    """The type hints of a dataclass. Cached, because resolving them took most of the time of reading a manifest."""
    return typing.get_type_hints(kind)


def _read_enum(kind: type[enum.Enum], raw: Any, where: str) -> enum.Enum:
    try:
        return kind(raw)
    except ValueError:
        raise CodecError(where, raw, " | ".join(str(m.value) for m in kind)) from None


def _read_scalar(kind: Any, raw: Any, where: str) -> Any:
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    wrong_bool = isinstance(raw, bool) and kind is not bool
    if wrong_bool or not isinstance(raw, kind):
        raise CodecError(where, raw, f"a value of type {kind.__name__}")
    if kind is float and not math.isfinite(raw):
        raise CodecError(where, raw, "a finite number")
    return raw
