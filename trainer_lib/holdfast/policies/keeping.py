"""What to keep: frozen values, combined by ``any_of`` and ``all_of`` of ``holdfast.policies.saving``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast_contract import defaults


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: what any of these rules keeps.

    ``latest``: so many of the newest. ``best``: so many by a metric; NaN and infinite values are the worst there are.
    ``every_steps``: every multiple. ``every_seconds``: one for so many seconds of training, which count on over
    restarts and leave out the time between them. ``steps``: these. ``everything``: all.

    Whatever the rule, what was saved with ``keep=True`` stays, and what the run was resumed from, and the newest two
    valid checkpoints.
    """

    latest: int | None = defaults.KEEP_LATEST
    best: int = 0
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    every_steps: int | None = None
    every_seconds: float | None = None
    steps: tuple[int, ...] = ()
    everything: bool = False

    def __post_init__(self) -> None:
        if self.latest is not None:
            require_int("keep.latest", self.latest, minimum=1)
        require_int("keep.best", self.best, minimum=0)
        if self.every_steps is not None:
            require_int("keep.every_steps", self.every_steps, minimum=1)
        if self.every_seconds is not None:
            require_positive("keep.every_seconds", self.every_seconds)
        for step in self.steps:
            require_int("keep.steps", step, minimum=0)
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(f"keep.metric: found {self.metric!r}, allowed: the name of a metric given to commit")
        if self.mode not in {"min", "max"}:
            raise ValueError(f"keep.mode: found {self.mode!r}, allowed: 'min' or 'max'")
        rules = (self.latest, self.best, self.every_steps, self.every_seconds, self.steps, self.everything)
        if not any(rules):
            raise ValueError("keep: found no rule, allowed: one or more; keep_all() deletes nothing")

    def to_spec(self) -> dict[str, object]:
        """The form that ``store.retention.from_spec`` reads; {} keeps everything."""
        if self.everything:
            return {}
        spec: dict[str, object] = {"best": self.best, "metric": self.metric, "mode": self.mode}
        named = {"latest": self.latest, "everySteps": self.every_steps, "everySeconds": self.every_seconds}
        spec |= {name: value for name, value in named.items() if value is not None}
        return spec | ({"steps": list(self.steps)} if self.steps else {})


@dataclass(frozen=True)
class KeepCombined:
    """What any of the rules keeps, or only what all of them keep."""

    kind: Literal["anyOf", "allOf"]
    rules: tuple[KeepRule, ...]

    def to_spec(self) -> dict[str, object]:
        """As Keep's, nested."""
        return {self.kind: [rule.to_spec() for rule in self.rules]}


KeepRule = Keep | KeepCombined


def keep(  # noqa: PLR0913  one name for every rule, all optional
    *,
    latest: int | None = defaults.KEEP_LATEST,
    best: int = 0,
    metric: str = "loss",
    mode: Literal["min", "max"] = "min",
    every_steps: int | None = None,
    every_seconds: float | None = None,
    steps: tuple[int, ...] = (),
) -> Keep:
    """Keep the newest ``latest`` and what any other rule given here keeps; see Keep. ``latest=None``: the others alone."""
    return Keep(latest, best, metric, mode, every_steps, every_seconds, tuple(steps))


def keep_all() -> Keep:
    """Delete nothing."""
    return Keep(latest=None, everything=True)


def fields_of(raw: Any, where: str, allowed: set[str]) -> Mapping[str, Any]:
    """The fields of an object in a document that are not null. Raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError(  # noqa: TRY004  a wrong value in a document, not a wrong call
            f"{where}: found {raw!r:.100}, allowed: an object with {', '.join(sorted(allowed))}"
        )
    present = {k: v for k, v in raw.items() if v is not None}
    if unknown := sorted(set(present) - allowed):
        raise ValueError(f"{where}.{unknown[0]}: unknown field, allowed: {', '.join(sorted(allowed))}")
    return present


def require_int(name: str, value: object, *, minimum: int) -> None:
    """Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: found {value!r}, allowed: a whole number of {minimum} or more")


def require_positive(name: str, value: object) -> None:
    """Raises ValueError."""
    right_type = isinstance(value, int | float) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{name}: found {value!r}, allowed: a finite number above 0")
