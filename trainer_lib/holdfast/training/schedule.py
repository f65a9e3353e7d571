"""When the policy wants a save: decided by every rank alone where it follows from the step, else asked for by process 0."""

from __future__ import annotations

from holdfast.policies.save_rules import DecisionContext, SavePolicy, split_deterministic
from holdfast.training.save_requests import POLICY_PREFIX
from holdfast_contract.sync import SaveRequest


class Schedule:
    """A policy at work in one rank."""

    def __init__(self, policy: SavePolicy, process_index: int) -> None:
        self._alone, self._agreed = split_deterministic(policy)
        self._leads = process_index == 0
        self._asked = ""  # the id of the request that is open

    def due(self, context: DecisionContext) -> bool:
        """Whether every rank finds by itself that this step is to be saved."""
        return self._alone.due(context)

    def ask(self, context: DecisionContext) -> SaveRequest | None:
        """The request to make now, by this process's clock and measurements. One at a time."""
        if not self._leads or self._asked or not self._agreed.due(context):
            return None
        self._asked = f"{POLICY_PREFIX}{context.step}"
        return SaveRequest(self._asked)

    def began(self) -> None:
        """A save has begun, for whatever reason: the interval starts anew."""
        self._asked = ""

    def settled(self, request_id: str) -> None:
        """A request has its outcome; if no save began for it, another may be made. Called on a background thread."""
        if request_id == self._asked:
            self._asked = ""
