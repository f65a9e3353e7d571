"""When the policy wants a save: decided by every rank alone where it follows from the step, else asked for by process 0."""

from __future__ import annotations

from holdfast.policies.saving import Moment, SavePolicy, split
from holdfast.training.save_requests import POLICY_PREFIX
from holdfast_contract.sync import SaveRequest


class Schedule:
    """A policy at work in one rank."""

    def __init__(self, policy: SavePolicy, process_index: int) -> None:
        self._exact, self._agreed = split(policy)
        self._leads = process_index == 0
        self._asked = ""  # the id of the request that is open

    def due(self, moment: Moment) -> bool:
        """Whether every rank finds by itself that this step is to be saved."""
        return self._exact.due(moment)

    def ask(self, moment: Moment) -> SaveRequest | None:
        """The request to make now, by this process's clock and measurements. One at a time."""
        if not self._leads or self._asked or not self._agreed.due(moment):
            return None
        self._asked = f"{POLICY_PREFIX}{moment.step}"
        return SaveRequest(self._asked)

    def began(self) -> None:
        """A save has begun, for whatever reason: the interval starts anew."""
        self._asked = ""

    def settled(self, request_id: str) -> None:
        """A request has its outcome; if no save began for it, another may be made. Called on a background thread."""
        if request_id == self._asked:
            self._asked = ""
