"""Executes a plan. Only this module writes pods, directives, finalizers and the status of valid jobs.

    1 directives (in memory)   2 pods   3 finalizer   4 one conditional status write   5 Events and counters

Every step can be repeated: names are deterministic, deletions name a UID, and the status write names the version read.
"""

from __future__ import annotations

import copy
from typing import Final

from holdfast_contract import keys
from holdfast_contract.reasons import Reason
from holdfast_operator.decide import children
from holdfast_operator.decide.actions import CreatePod, DeleteJob, DeletePod, Event, Finalizer, JobPlan
from holdfast_operator.decide.facts import JobFact, Observation
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from holdfast_operator.interfaces import Events, Manifest, Metrics
from holdfast_operator.sync_endpoint.board import Board, PodIdentity
from holdfast_operator.watch.cache import WatchCache

POD_RETRY_SECONDS: Final = 5.0
"""How soon the operator tries again to create a pod that the API server refused: quota or permissions may change."""


class Actor:
    """Executes plans."""

    def __init__(
        self,
        *,
        kube: Kube,
        board: Board,
        control: children.ControlSettings,
        events: Events,
        metrics: Metrics,
        cache: WatchCache,
    ) -> None:
        """Connect the parts.

        Args:
            kube: access to the API server.
            board: receives the directives.
            control: how new pods reach the control endpoint.
            events: receives the Events.
            metrics: receives the counts.
            cache: learns what was written, so that the watch's echo wakes nobody.
        """
        self._cache = cache
        self._kube, self._board, self._control = kube, board, control
        self._events, self._metrics = events, metrics

    async def execute(self, raw: Manifest, observation: Observation, plan: JobPlan) -> float:
        """Execute the plan.

        Args:
            raw: the job as it was read.
            observation: what the plan was decided from.
            plan: what to do.

        Returns:
            Seconds until the next pass.

        Raises:
            Conflict: the job has changed since it was read.
            KubeError: the API server did not answer, or refused.
        """
        job = observation.job
        self.publish(observation, plan)
        delay = plan.requeue_after_seconds
        for action in plan.actions:
            match action:
                case CreatePod():
                    # A pod's first report must find a directive: the next pass follows at once.
                    delay = min(delay, 0.0 if await self._create(raw, job, action) else POD_RETRY_SECONDS)
                case DeletePod():
                    await self._delete(job, action)
                case DeleteJob():
                    await self._kube.delete_job(job.namespace, job.name, job.uid)
                case Finalizer():
                    changed = await self._set_finalizer(raw, action)
                    if changed is None:
                        return delay  # the API server has deleted the job now
                    raw = changed
        if plan.status is not job.status:
            await self._write_status(raw, plan)
        return delay

    def publish(self, observation: Observation, plan: JobPlan) -> None:
        """Publish the plan's directives, if it has any; those of the pods observed."""
        if plan.directives is None:
            return
        job = observation.job
        by_uid = {p.uid: PodIdentity(job.namespace, p.name, p.uid) for p in observation.pods}
        self._board.publish(job.namespace, job.name, {by_uid[uid]: d for uid, d in plan.directives.items()})

    async def _create(self, raw: Manifest, job: JobFact, action: CreatePod) -> bool:
        """Create a worker's pod. Returns whether it exists now; an Event says why not."""
        manifest = children.pod(job, action, self._control)
        name = manifest["metadata"]["name"]
        try:
            await self._kube.create_pod(job.namespace, manifest)
        except AlreadyExists:
            found = await self._kube.get_pod(job.namespace, name)
            if found is None or _is_owned(found, job.uid):
                return True
            message = f"worker {action.index} cannot start: pod {name} exists and does not belong to this job"
        except (Forbidden, Invalid) as error:
            message = f"worker {action.index} cannot start: the API server refused pod {name}: {error}"
        else:
            return True
        self._events.emit(raw, Event(Reason.POD_CREATION_FAILED, message[:1024], "Warning"))
        return False

    async def _delete(self, job: JobFact, action: DeletePod) -> None:
        try:
            await self._kube.delete_pod(job.namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds)
        except (NotFound, Conflict):
            return  # the pod no longer exists, or the name belongs to another pod now

    async def _set_finalizer(self, raw: Manifest, action: Finalizer) -> Manifest | None:
        """The job with or without our finalizer; None if that has deleted it."""
        others = [f for f in raw["metadata"].get("finalizers", []) if f != keys.FINALIZER]
        finalizers = [*others, keys.FINALIZER] if action is Finalizer.ADD else others
        try:
            meta = raw["metadata"]
            changed = await self._kube.patch_job_finalizers(
                meta["namespace"], meta["name"], finalizers, meta["resourceVersion"]
            )
        except NotFound:
            return None
        last = action is Finalizer.REMOVE and not others and raw["metadata"].get("deletionTimestamp")
        return None if last else changed

    async def _write_status(self, raw: Manifest, plan: JobPlan) -> None:
        body = copy.copy(raw)
        body["status"] = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._cache.job_read(await self._kube.update_job_status(body))
        for event in plan.events:
            self._events.emit(raw, event)
        for count in plan.counts:
            self._metrics.count(count)


def _is_owned(pod: Manifest, job_uid: str) -> bool:
    return any(o.get("uid") == job_uid for o in pod["metadata"].get("ownerReferences", []))
