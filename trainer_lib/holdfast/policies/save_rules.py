"""When to save: one frozen value per rule. This file has the rules over steps and clocks, and how rules combine.

To add a save rule, write a class with the two members of ``SavePolicy`` and a function that makes it. If a job may
name the rule too, read it in ``holdfast.policies.job_rules``.

A rule over steps alone gives every rank the same answer. A rule that looks at a clock or at measurements does not.
Process 0 evaluates such a rule, and the ranks agree on the step to save, one or two steps after the rule was met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.policies.failure_rate import UNOBSERVED
from holdfast.policies.field_checks import require_int, require_positive
from holdfast_contract import defaults
from holdfast_contract.sync import FailureHistory

DEFAULT_SECONDS: Final = float(defaults.SAVE_SECONDS)
"""The interval between saves if neither the program nor the job names a rule."""


@dataclass(frozen=True)
class DecisionContext:
    """What a save rule may look at when it decides on a step."""

    step: int
    """The step that is done. The state after it may be saved."""
    since_last_save_seconds: float
    """Since the last save began; before the first save, since the loop began."""
    stall_seconds: float | None = None
    """How long recent saves stopped the loop, on average; None before the first save."""
    write_seconds: float | None = None
    """How long recent saves took until they were committed (99th percentile); None before the first commit."""
    recent: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """For each metric that a rule watches, its latest values, oldest first. Only completed steps are in it."""
    history: FailureHistory = UNOBSERVED
    """The failures so far and the seconds that training ran, this attempt included."""


class SavePolicy(Protocol):
    """A save rule."""

    @property
    def deterministic(self) -> bool:
        """Whether ``due`` is a function of the step alone. If so, every rank evaluates it without asking the others."""

    def due(self, context: DecisionContext) -> bool:
        """Whether to save the state after ``context.step``."""


@dataclass(frozen=True)
class SaveEverySteps:
    """Save at every multiple of ``steps``, counted from the start of the run."""

    steps: int
    deterministic = True

    def __post_init__(self) -> None:
        require_int("every_steps", self.steps, minimum=1)

    def due(self, context: DecisionContext) -> bool:
        """Whether the step is a multiple."""
        return context.step % self.steps == 0


@dataclass(frozen=True)
class SaveEverySeconds:
    """Save when ``seconds`` have passed since the last save began."""

    seconds: float
    deterministic = False

    def __post_init__(self) -> None:
        require_positive("every_seconds", self.seconds)

    def due(self, context: DecisionContext) -> bool:
        """Whether the interval is over."""
        return context.since_last_save_seconds >= self.seconds


@dataclass(frozen=True)
class SaveAtSteps:
    """Save at these steps and no others."""

    steps: frozenset[int]
    deterministic = True

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("at_steps: found no step, allowed: one or more")
        for step in self.steps:
            require_int("at_steps", step, minimum=1)

    def due(self, context: DecisionContext) -> bool:
        """Whether the step is one of them."""
        return context.step in self.steps


@dataclass(frozen=True)
class SaveOnlyAtEnd:
    """Save by no rule: only the last step, before a preemption and when the program asks for it."""

    deterministic = True

    def due(self, context: DecisionContext) -> bool:  # noqa: ARG002  the same answer in every context
        """Never."""
        return False


@dataclass(frozen=True)
class SaveWhenAny:
    """Save when at least one of the rules is met."""

    policies: tuple[SavePolicy, ...]

    @property
    def deterministic(self) -> bool:
        """Whether all rules are."""
        return all(p.deterministic for p in self.policies)

    def due(self, context: DecisionContext) -> bool:
        """Whether at least one rule is met."""
        return any(p.due(context) for p in self.policies)


@dataclass(frozen=True)
class SaveWhenAll:
    """Save when all of the rules are met."""

    policies: tuple[SavePolicy, ...]

    @property
    def deterministic(self) -> bool:
        """Whether all rules are."""
        return all(p.deterministic for p in self.policies)

    def due(self, context: DecisionContext) -> bool:
        """Whether all rules are met."""
        return all(p.due(context) for p in self.policies)


def every_steps(steps: int) -> SaveEverySteps:
    """Save at every multiple of ``steps``. Raises ValueError if that is not 1 or more."""
    return SaveEverySteps(steps)


def every_seconds(seconds: float) -> SaveEverySeconds:
    """Save when ``seconds`` have passed since the last save began. Raises ValueError if they are not above 0."""
    return SaveEverySeconds(seconds)


def at_steps(*steps: int) -> SaveAtSteps:
    """Save at these steps, each 1 or more. Raises ValueError."""
    return SaveAtSteps(frozenset(steps))


def only_at_end() -> SaveOnlyAtEnd:
    """Save at the end, before a preemption and when the program asks for it, but by no rule."""
    return SaveOnlyAtEnd()


def split_deterministic(policy: SavePolicy) -> tuple[SavePolicy, SavePolicy]:
    """Split a rule in two: first what every rank decides alone, then what the ranks must agree on.

    A save is due when either part is met. Together the parts mean the same as ``policy``.
    """
    if isinstance(policy, SaveWhenAny):
        parts = [split_deterministic(p) for p in policy.policies]
        return SaveWhenAny(tuple(alone for alone, _ in parts)), SaveWhenAny(tuple(agreed for _, agreed in parts))
    return (policy, SaveOnlyAtEnd()) if policy.deterministic else (SaveOnlyAtEnd(), policy)
