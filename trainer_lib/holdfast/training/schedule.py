"""When the policy wants a save: decided by every rank alone where it follows from the step, else asked for by process 0."""

from __future__ import annotations

from typing import Final

from holdfast.distributed.agreement import Answer, Ask, Decision
from holdfast.policies.save_rules import DecisionContext, SavePolicy, split_deterministic

POLICY_PREFIX: Final = "policy/"
"""Requests that the library makes of itself; nobody outside waits for their outcome."""


class Schedule:
    """A policy at work in one rank."""

    def __init__(self, policy: SavePolicy, process_index: int) -> None:
        self._alone, self._agreed = split_deterministic(policy)
        self._leads = process_index == 0
        self._asked = False

    def due(self, context: DecisionContext) -> bool:
        """Whether every rank finds by itself that this step is to be saved."""
        return self._alone.due(context)

    def ask(self, context: DecisionContext) -> Ask | None:
        """The request to make now, because this process's clock and measurements say so. One at a time."""
        if not self._leads or self._asked or not self._agreed.due(context):
            return None
        self._asked = True
        return Ask(f"{POLICY_PREFIX}{context.step}")

    def began(self) -> None:
        """A save has begun, for whatever reason: the interval starts anew."""
        self._asked = False

    def decided(self, ask: Ask, decision: Decision) -> None:
        """What became of a request; one that led to no save may be made again."""
        if ask.id.startswith(POLICY_PREFIX) and decision.answer is not Answer.SAVE:
            self._asked = False
