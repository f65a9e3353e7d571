"""One pass over one job: observe, decide, act. The queue runs one pass per job at a time.

A pass first decides from what the watch has delivered. If there is nothing to do (the usual case) or only progress to
write, it ends there, without a read. Before anything else happens, it reads everything live and decides again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from holdfast_contract import keys
from holdfast_contract.api import TrainingJobStatus
from holdfast_contract.reasons import Condition, Reason
from holdfast_operator.decide import conditions
from holdfast_operator.decide.actions import Event, JobPlan
from holdfast_operator.decide.children import ControlSettings
from holdfast_operator.decide.facts import DEFAULT_PROGRESS_SECONDS, JobFact, Observation
from holdfast_operator.decide.precedence import decide
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Conflict, NotFound
from holdfast_operator.interfaces import Clock, Events, Manifest, Metrics
from holdfast_operator.reconcile import observe
from holdfast_operator.reconcile.act import Actor
from holdfast_operator.sync_endpoint.board import Board
from holdfast_operator.watch.cache import WatchCache
from holdfast_operator.watch.manifest_facts import SpecError

CONFLICT_SECONDS: Final = 0.05
"""How soon the next pass follows if the job changed during a pass."""

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles jobs. Keeps no state between passes but the cache's doubts."""

    def __init__(  # noqa: PLR0913  the parts of a pass, all named at the call
        self,
        *,
        kube: Kube,
        board: Board,
        control: ControlSettings,
        clock: Clock,
        events: Events,
        metrics: Metrics,
        cache: WatchCache | None = None,
        progress_seconds: float = DEFAULT_PROGRESS_SECONDS,
    ) -> None:
        """Connect the parts.

        Args:
            kube: access to the API server.
            board: the agents' reports and directives.
            control: how new pods reach the control endpoint.
            clock: wall and monotonic time.
            events: receives the Events.
            metrics: receives the counts.
            cache: what the watch delivers; without it every pass reads live.
            progress_seconds: how often a status may be written for progress alone.
        """
        self._kube, self._board, self._clock, self._events = kube, board, clock, events
        self._cache = WatchCache() if cache is None else cache
        self._watched, self._progress_seconds = cache is not None, progress_seconds
        self._actor = Actor(kube=kube, board=board, control=control, events=events, metrics=metrics, cache=self._cache)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Run one pass.

        Returns:
            Seconds until the next pass; None: not before something changes.

        Raises:
            KubeError: the API server did not answer; the queue tries again with back-off.
        """
        try:
            pause = await self._from_watch(namespace, name)
            return await self._from_live_reads(namespace, name) if pause is None else pause
        except Conflict:
            log.debug("job changed during the pass", extra={"namespace": namespace, "job": name})
            self._cache.doubt(namespace, name)
            return CONFLICT_SECONDS
        except NotFound:
            self._cache.doubt(namespace, name)
            return 0.0  # the job was deleted during the pass: the next pass handles that
        except BaseException:  # of any kind: a write may have happened
            self._cache.doubt(namespace, name)
            raise

    async def _from_watch(self, namespace: str, name: str) -> float | None:
        """Run a pass without a read. Returns seconds until the next pass; None if this one needs live reads."""
        known = self._cache.snapshot(namespace, name) if self._watched else None
        observation = None if known is None else observe.from_watch(known, self._board, self._clock)
        if known is None or observation is None:
            return None
        plan = self._decide(observation)
        if not self._is_routine(observation.job, plan):
            return None
        return await self._actor.execute(known.raw, observation, replace(plan, directives=None))

    def _is_routine(self, job: JobFact, plan: JobPlan) -> bool:
        """Whether the plan changes nothing but progress and the account of time."""
        if plan.actions or not self._board.has_published(job.namespace, job.name, plan.directives):
            return False
        flowing = {"progress": job.status.progress, "goodput": job.status.goodput}
        return plan.status is job.status or plan.status.model_copy(update=flowing) == job.status

    async def _from_live_reads(self, namespace: str, name: str) -> float | None:
        self._cache.trust(namespace, name)
        raw = await self._kube.get_job(namespace, name)
        if raw is None:
            self._cache.job_is_gone(namespace, name)
            self._board.forget(namespace, name)  # its pods are answered with Exit from now on
            return None
        self._cache.job_read(raw)
        try:
            observation = await observe.gather(self._kube, self._board, self._clock, self._cache, raw)
        except SpecError as error:
            return await self._refuse(raw, str(error))
        plan = self._decide(observation)
        if plan.actions:
            self._cache.doubt(namespace, name)  # the next pass sees for itself what became of them
        pause = await self._actor.execute(raw, observation, plan)
        if plan.actions or plan.status is observation.job.status:
            return pause
        follows = self._follow(namespace, name)
        return pause if follows is None else follows

    def _follow(self, namespace: str, name: str) -> float | None:
        """Publish the directives of a decision that this pass has just stored, so that agents need not wait for another.

        The API server's answer is the job, and the pods were read live a moment ago.

        Returns:
            Seconds until the next pass; None if more follows than directives: the next pass does that.
        """
        known = self._cache.snapshot(namespace, name)
        observation = None if known is None else observe.from_watch(known, self._board, self._clock)
        if observation is None:
            return None
        plan = self._decide(observation)
        if plan.actions:
            return None
        self._actor.publish(observation, plan)
        return plan.requeue_after_seconds if plan.status is observation.job.status else None

    def _decide(self, observation: Observation) -> JobPlan:
        now = self._clock.now()
        observation = replace(observation, progress_seconds=self._progress_seconds)
        return decide(observation, now.replace(microsecond=now.microsecond // 1000 * 1000))

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
        self._cache.job_read(await self._kube.update_job_status(body))
        self._events.emit(raw, Event(Reason.INVALID_SPEC, message[:1024], "Warning"))
        return None
