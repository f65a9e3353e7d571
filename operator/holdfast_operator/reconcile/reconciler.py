"""One pass over one job: observe, decide, act. The queue runs one pass per job at a time."""

from __future__ import annotations

import logging
from typing import Final

from holdfast_contract import keys
from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.reasons import Condition, Reason
from holdfast_operator.decide import conditions
from holdfast_operator.decide.actions import Event
from holdfast_operator.decide.children import ControlSettings
from holdfast_operator.decide.precedence import decide
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Conflict, NotFound
from holdfast_operator.interfaces import Clock, Events, Manifest, Metrics
from holdfast_operator.reconcile import observe
from holdfast_operator.reconcile.act import Actor
from holdfast_operator.sync_endpoint.board import Board

CONFLICT_SECONDS: Final = 0.05
"""How soon the next pass follows if the job changed during a pass."""

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles jobs. Keeps no state between passes."""

    def __init__(
        self,
        *,
        kube: Kube,
        board: Board,
        control: ControlSettings,
        clock: Clock,
        events: Events,
        metrics: Metrics,
    ) -> None:
        """Connect the parts.

        Args:
            kube: access to the API server.
            board: the agents' reports and directives.
            control: how new pods reach the control endpoint.
            clock: wall and monotonic time.
            events: receives the Events.
            metrics: receives the counts.
        """
        self._kube, self._board, self._clock, self._events = kube, board, clock, events
        self._actor = Actor(kube=kube, board=board, control=control, events=events, metrics=metrics)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Run one pass.

        Returns:
            Seconds until the next pass; None: not before something changes.

        Raises:
            KubeError: the API server did not answer; the queue tries again with back-off.
        """
        raw = await self._kube.get_job(namespace, name)
        if raw is None:
            self._board.forget(namespace, name)  # its pods are answered with Exit from now on
            return None
        try:
            observation = await observe.gather(self._kube, self._board, self._clock, raw)
        except observe.SpecError as error:
            return await self._refuse(raw, str(error))
        now = self._clock.now()
        plan = decide(observation, now.replace(microsecond=now.microsecond // 1000 * 1000))
        try:
            return await self._actor.execute(raw, observation, plan)
        except Conflict:
            log.debug("job changed during the pass", extra={"namespace": namespace, "job": name})
            return CONFLICT_SECONDS
        except NotFound:
            return 0.0  # the job was deleted during the pass: the next pass handles that

    async def _refuse(self, raw: Manifest, message: str) -> float | None:
        """Write a condition that says why the operator cannot run this spec; change nothing else."""
        if raw["metadata"].get("deletionTimestamp") and keys.FINALIZER in raw["metadata"].get("finalizers", []):
            meta = raw["metadata"]
            others = [f for f in meta["finalizers"] if f != keys.FINALIZER]
            # The operator cannot request a save for a spec that it cannot read.
            await self._kube.patch_job_finalizers(meta["namespace"], meta["name"], others, meta["resourceVersion"])
            return None
        try:
            status = TrainingJobStatus.model_validate(raw.get("status") or {})
        except ValueError:
            status = TrainingJobStatus()
        stamp = conditions.Stamp(self._clock.now(), raw["metadata"].get("generation", 0))
        refused = conditions.put(
            stamp, status, Condition.ADMITTED, value="False", reason=Reason.INVALID_SPEC, message=message
        )
        before = conditions.get(status, Condition.ADMITTED)
        if before == conditions.get(refused, Condition.ADMITTED):
            return None
        body = {**raw, "status": refused.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            await self._kube.update_job_status(body)
        except Conflict:
            return CONFLICT_SECONDS
        self._events.emit(raw, Event(Reason.INVALID_SPEC, message[:1024], "Warning"))
        return None
