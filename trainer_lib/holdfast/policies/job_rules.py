"""The rules that a job names in ``spec.checkpoint``, read from JSON into the same values that a program makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from holdfast.policies.checkpoint_health import Predicate, finite
from holdfast.policies.failure_rate import PRIOR_FAILURES, PRIOR_SECONDS
from holdfast.policies.keep_rules import KeepRule, KeptByAll, KeptByAny, keep, keep_all
from holdfast.policies.save_adaptive import SaveAdaptively
from holdfast.policies.save_rules import (
    DEFAULT_SECONDS,
    SaveAtSteps,
    SaveEverySeconds,
    SaveEverySteps,
    SavePolicy,
    SaveWhenAll,
    SaveWhenAny,
    only_at_end,
)
from holdfast.policies.save_when_unstable import SaveWhenUnstable
from holdfast_contract import defaults

T = TypeVar("T")

_SAVE_FIELDS: Final = {"seconds", "steps", "adaptive", "atSteps", "whenUnstable", "allOf", "anyOf", "onlyAtEnd"}
_KEEP_FIELDS: Final = {
    "latest",
    "best",
    "metric",
    "mode",
    "everySteps",
    "everySeconds",
    "steps",
    "allOf",
    "anyOf",
    "all",
}
_KEEP_ARGUMENTS: Final = {"everySteps": "every_steps", "everySeconds": "every_seconds"}


@dataclass(frozen=True)
class JobRules:
    """What a job says about its checkpoints. ``healthy`` None: every checkpoint counts as healthy."""

    every: SavePolicy = field(default_factory=lambda: SaveEverySeconds(DEFAULT_SECONDS))
    keep: KeepRule = field(default_factory=keep)
    healthy: Predicate | None = None


def rules_from_json(text: str, where: str) -> JobRules:
    """Read the fields ``every``, ``keep`` and ``healthy`` of ``spec.checkpoint`` from JSON.

    ``where`` names the source of ``text`` in errors.

    Raises:
        ValueError: names the field, what was found and what is allowed.
    """
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: found {text!r:.100}, allowed: a JSON object ({error})") from None
    spec = _fields_of(spec, where, {"every", "keep", "healthy"})
    readers: dict[str, Callable[[Any, str], Any]] = {"every": every_from, "keep": keep_from, "healthy": _healthy_from}
    try:
        return JobRules(**{name: readers[name](raw, f"{where}.{name}") for name, raw in spec.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def every_from(raw: Any, where: str) -> SavePolicy:
    """Read a save rule. ``where`` names ``raw`` in errors. Raises ValueError or TypeError that names the field."""
    fields = _fields_of(raw, where, _SAVE_FIELDS)
    if len(fields) != 1:
        found = ", ".join(sorted(fields)) or "no rule"
        raise ValueError(f"{where}: found {found}, allowed: exactly one of {', '.join(sorted(_SAVE_FIELDS))}")
    ((name, value),) = fields.items()
    inner = f"{where}.{name}"
    readers: dict[str, Callable[[], SavePolicy]] = {
        "seconds": lambda: SaveEverySeconds(value),
        "steps": lambda: SaveEverySteps(value),
        "adaptive": lambda: _adaptive_from(value, inner),
        "atSteps": lambda: SaveAtSteps(frozenset(_items(value, inner))),
        "whenUnstable": lambda: _unstable_from(value, inner),
        "allOf": lambda: SaveWhenAll(_each(value, inner, every_from)),
        "anyOf": lambda: SaveWhenAny(_each(value, inner, every_from)),
        "onlyAtEnd": lambda: _flag(value, inner, only_at_end),
    }
    return readers[name]()


def keep_from(raw: Any, where: str, *, latest: int | None = defaults.KEEP_LATEST) -> KeepRule:
    """Read what to keep.

    Args:
        raw: an object of the specification. A checkpoint stays if any of its fields keeps it, ``anyOf`` and ``allOf``
            among them.
        where: names ``raw`` in errors.
        latest: how many of the newest checkpoints to keep if the object does not say; None: do not count.

    Raises:
        ValueError: names the field, what was found and what is allowed.
        TypeError: a value has a type that no rule takes.
    """
    fields = dict(_fields_of(raw, where, _KEEP_FIELDS))
    if "all" in fields:
        if len(fields) > 1:
            found = ", ".join(sorted(fields))
            raise ValueError(f"{where}: found {found}, allowed: all alone, because it deletes nothing")
        return _flag(fields["all"], f"{where}.all", keep_all)
    for name, other in (("best", "metric"), ("metric", "best"), ("mode", "metric")):
        if name in fields and other not in fields:
            raise ValueError(f"{where}.{name}: found {fields[name]!r} without {other}, allowed: both or neither")
    rules: list[KeepRule] = []
    if "anyOf" in fields:
        rules += _each(fields.pop("anyOf"), f"{where}.anyOf", _nested)
    if "allOf" in fields:
        rules.append(KeptByAll(_each(fields.pop("allOf"), f"{where}.allOf", _nested)))
    if fields or not rules or latest is not None:
        fields.setdefault("latest", latest)
        if "steps" in fields:
            fields["steps"] = tuple(_items(fields["steps"], f"{where}.steps"))
        rules.insert(0, keep(**{_KEEP_ARGUMENTS.get(name, name): value for name, value in fields.items()}))
    return rules[0] if len(rules) == 1 else KeptByAny(tuple(rules))


def _nested(raw: Any, where: str) -> KeepRule:
    return keep_from(raw, where, latest=None)


def _adaptive_from(raw: Any, where: str) -> SaveAdaptively:
    names = {"minSeconds", "maxSeconds", "priorMeanSecondsBetweenFailures", "priorFailures"}
    fields = _fields_of(raw, where, names)
    return SaveAdaptively(
        fields.get("minSeconds", 60.0),
        fields.get("maxSeconds", 3600.0),
        fields.get("priorMeanSecondsBetweenFailures", PRIOR_SECONDS),
        fields.get("priorFailures", PRIOR_FAILURES),
    )


def _unstable_from(raw: Any, where: str) -> SaveWhenUnstable:
    names = {
        "metric": "metric",
        "minSeconds": "min_seconds",
        "baseSeconds": "base_seconds",
        "maxSeconds": "max_seconds",
        "window": "window",
        "tolerance": "tolerance",
    }
    fields = _fields_of(raw, where, set(names))
    return SaveWhenUnstable(**{names[name]: value for name, value in fields.items()})


def _healthy_from(raw: Any, where: str) -> Predicate:
    names = _items(_fields_of(raw, where, {"finite"}).get("finite"), f"{where}.finite")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}.finite: found {name!r}, allowed: names of metrics given to commit")
    return finite(*names)


def _fields_of(raw: Any, where: str, allowed: set[str]) -> Mapping[str, Any]:
    """The fields of an object that are not null. Raises ValueError if it is no object or has an unknown field."""
    if not isinstance(raw, dict):
        raise ValueError(  # noqa: TRY004  a wrong value in a document, not a wrong call
            f"{where}: found {raw!r:.100}, allowed: an object with {', '.join(sorted(allowed))}"
        )
    present = {k: v for k, v in raw.items() if v is not None}
    if unknown := sorted(set(present) - allowed):
        raise ValueError(f"{where}.{unknown[0]}: unknown field, allowed: {', '.join(sorted(allowed))}")
    return present


def _each(raw: Any, where: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(_items(raw, where)))


def _items(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{where}: found {raw!r:.100}, allowed: a list with one or more entries")
    return raw


def _flag(raw: Any, where: str, make: Callable[[], T]) -> T:
    if raw is not True:
        raise ValueError(f"{where}: found {raw!r:.100}, allowed: true, or no such field")
    return make()
