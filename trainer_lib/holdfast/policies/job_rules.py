"""The rules of a job's specification as values: when to save, what to keep, and which checkpoints are worth anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from holdfast.policies.failures import PRIOR_FAILURES, PRIOR_SECONDS
from holdfast.policies.health import Predicate, finite
from holdfast.policies.keeping import Keep, KeepCombined, KeepRule, fields_of, keep_all
from holdfast.policies.saving import (
    DEFAULT_SECONDS,
    Adaptive,
    AllOf,
    AnyOf,
    EverySeconds,
    EverySteps,
    SavePolicy,
    only_at_end,
)
from holdfast.policies.triggers import AtSteps, WhenUnstable
from holdfast_contract import defaults

T = TypeVar("T")

_SAVES: Final = {"seconds", "steps", "adaptive", "atSteps", "whenUnstable", "allOf", "anyOf", "onlyAtEnd"}
_KEPT: Final = {"latest", "best", "metric", "mode", "everySteps", "everySeconds", "steps", "allOf", "anyOf", "all"}
_KEEP_NAMES: Final = {"everySteps": "every_steps", "everySeconds": "every_seconds"}


@dataclass(frozen=True)
class JobRules:
    """What a job says of its checkpoints. ``healthy`` None: nothing speaks against any."""

    every: SavePolicy = field(default_factory=lambda: EverySeconds(DEFAULT_SECONDS))
    keep: KeepRule = field(default_factory=Keep)
    healthy: Predicate | None = None


def rules_from_json(text: str, where: str) -> JobRules:
    """The ``every``, ``keep`` and ``healthy`` of a job's specification, as JSON. ``where`` names the source in errors.

    Raises:
        ValueError: names the field, what was found and what is allowed.
    """
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: found {text!r:.100}, allowed: a JSON object ({error})") from None
    spec = fields_of(spec, where, {"every", "keep", "healthy"})
    readers: dict[str, Callable[[Any, str], Any]] = {"every": every_from, "keep": keep_from, "healthy": _healthy_from}
    try:
        return JobRules(**{name: readers[name](raw, f"{where}.{name}") for name, raw in spec.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def every_from(raw: Any, where: str) -> SavePolicy:
    """A rule for saves. Raises ValueError or TypeError naming the field."""
    fields = fields_of(raw, where, _SAVES)
    if len(fields) != 1:
        found = ", ".join(sorted(fields)) or "no rule"
        raise ValueError(f"{where}: found {found}, allowed: exactly one of {', '.join(sorted(_SAVES))}")
    ((name, value),) = fields.items()
    inner = f"{where}.{name}"
    readers: dict[str, Callable[[], SavePolicy]] = {
        "seconds": lambda: EverySeconds(value),
        "steps": lambda: EverySteps(value),
        "adaptive": lambda: _adaptive_from(value, inner),
        "atSteps": lambda: AtSteps(frozenset(_items(value, inner))),
        "whenUnstable": lambda: _unstable_from(value, inner),
        "allOf": lambda: AllOf(_each(value, inner, every_from)),
        "anyOf": lambda: AnyOf(_each(value, inner, every_from)),
        "onlyAtEnd": lambda: _flag(value, inner, only_at_end),
    }
    return readers[name]()


def keep_from(raw: Any, where: str, *, latest: int | None = defaults.KEEP_LATEST) -> KeepRule:
    """What to keep; ``latest`` is how many of the newest where nothing is said. Raises ValueError or TypeError."""
    fields = dict(fields_of(raw, where, _KEPT))
    if "all" in fields:
        if len(fields) > 1:
            raise ValueError(f"{where}: found {', '.join(sorted(fields))}, allowed: all alone, for it deletes nothing")
        return _flag(fields["all"], f"{where}.all", keep_all)
    for name, other in (("best", "metric"), ("metric", "best"), ("mode", "metric")):
        if name in fields and other not in fields:
            raise ValueError(f"{where}.{name}: found {fields[name]!r} without {other}, allowed: both or neither")
    combined: list[KeepRule] = []
    if "anyOf" in fields:
        combined += _each(fields.pop("anyOf"), f"{where}.anyOf", _nested)
    if "allOf" in fields:
        combined.append(KeepCombined("allOf", _each(fields.pop("allOf"), f"{where}.allOf", _nested)))
    if fields or not combined or latest is not None:
        fields.setdefault("latest", latest)
        if "steps" in fields:
            fields["steps"] = tuple(_items(fields["steps"], f"{where}.steps"))
        combined.insert(0, Keep(**{_KEEP_NAMES.get(name, name): value for name, value in fields.items()}))
    return combined[0] if len(combined) == 1 else KeepCombined("anyOf", tuple(combined))


def _nested(raw: Any, where: str) -> KeepRule:
    return keep_from(raw, where, latest=None)


def _adaptive_from(raw: Any, where: str) -> Adaptive:
    names = {"minSeconds", "maxSeconds", "priorMeanSecondsBetweenFailures", "priorFailures"}
    fields = fields_of(raw, where, names)
    return Adaptive(
        fields.get("minSeconds", 60.0),
        fields.get("maxSeconds", 3600.0),
        fields.get("priorMeanSecondsBetweenFailures", PRIOR_SECONDS),
        fields.get("priorFailures", PRIOR_FAILURES),
    )


def _unstable_from(raw: Any, where: str) -> WhenUnstable:
    names = {
        "metric": "metric",
        "minSeconds": "min_seconds",
        "baseSeconds": "base_seconds",
        "maxSeconds": "max_seconds",
        "window": "window",
        "tolerance": "tolerance",
    }
    fields = fields_of(raw, where, set(names))
    return WhenUnstable(**{names[name]: value for name, value in fields.items()})


def _healthy_from(raw: Any, where: str) -> Predicate:
    names = _items(fields_of(raw, where, {"finite"}).get("finite"), f"{where}.finite")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}.finite: found {name!r}, allowed: names of metrics given to commit")
    return finite(*names)


def _each(raw: Any, where: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(_items(raw, where)))


def _items(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{where}: found {raw!r:.100}, allowed: a list with one or more entries")
    return raw


def _flag(raw: Any, where: str, made: Callable[[], T]) -> T:
    if raw is not True:
        raise ValueError(f"{where}: found {raw!r:.100}, allowed: true, or nothing")
    return made()
