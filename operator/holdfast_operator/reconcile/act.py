"""Carrying out a plan: the only module that writes pods, directives, finalizers and status.

    1 directives (in memory)   2 pods   3 finalizer   4 one status write, conditional   5 events and counters

Every step can be repeated: names are deterministic, deletions name a UID, the status is bound to the version read.
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

POD_RETRY_SECONDS: Final = 5.0
"""How soon a pod that the API server refused is tried again (quota, admission, permissions may change)."""


class Actor:
    """Carries out plans with these means."""

    def __init__(
        self, *, kube: Kube, board: Board, control: children.ControlSettings, events: Events, metrics: Metrics
    ) -> None:
        self._kube, self._board, self._control = kube, board, control
        self._events, self._metrics = events, metrics

    async def execute(self, raw: Manifest, observation: Observation, plan: JobPlan) -> float:
        """Do it; seconds until the next look is wanted. Raises Conflict if the job has changed since it was read."""
        job = observation.job
        self._publish(observation, plan)
        delay = plan.requeue_after_seconds
        for action in plan.actions:
            match action:
                case CreatePod():
                    # A pod must find its directive when it first speaks: the next pass follows at once.
                    delay = min(delay, 0.0 if await self._create(raw, job, action) else POD_RETRY_SECONDS)
                case DeletePod():
                    await self._delete(job, action)
                case DeleteJob():
                    await self._kube.delete_job(job.namespace, job.name, job.uid)
                case Finalizer():
                    changed = await self._set_finalizer(raw, action)
                    if changed is None:
                        return delay  # that was the last thing that kept the object
                    raw = changed
        if plan.status is not job.status:
            await self._write_status(raw, plan)
        return delay

    def _publish(self, observation: Observation, plan: JobPlan) -> None:
        if plan.directives is None:
            return
        job = observation.job
        by_uid = {p.uid: PodIdentity(job.namespace, p.name, p.uid) for p in observation.pods}
        self._board.publish(job.namespace, job.name, {by_uid[uid]: d for uid, d in plan.directives.items()})

    async def _create(self, raw: Manifest, job: JobFact, action: CreatePod) -> bool:
        """Whether the pod is there now, by whoever's hand."""
        manifest = children.pod(job, action, self._control)
        name = manifest["metadata"]["name"]
        try:
            await self._kube.create_pod(job.namespace, manifest)
        except AlreadyExists:
            found = await self._kube.get_pod(job.namespace, name)
            if found is None or _is_owned(found, job.uid):
                return True
            message = f"pod {name} exists and does not belong to this job"
        except (Forbidden, Invalid) as error:
            message = f"pod {name}: {error}"
        else:
            return True
        self._events.emit(raw, Event(Reason.POD_CREATION_FAILED, message[:1024], "Warning"))
        return False

    async def _delete(self, job: JobFact, action: DeletePod) -> None:
        try:
            await self._kube.delete_pod(job.namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds)
        except (NotFound, Conflict):
            return  # gone already, or the name belongs to another pod now

    async def _set_finalizer(self, raw: Manifest, action: Finalizer) -> Manifest | None:
        others = [f for f in raw["metadata"].get("finalizers", []) if f != keys.FINALIZER]
        wanted = [*others, keys.FINALIZER] if action is Finalizer.ADD else others
        try:
            meta = raw["metadata"]
            changed = await self._kube.patch_job_finalizers(
                meta["namespace"], meta["name"], wanted, meta["resourceVersion"]
            )
        except NotFound:
            return None
        last = action is Finalizer.REMOVE and not others and raw["metadata"].get("deletionTimestamp")
        return None if last else changed

    async def _write_status(self, raw: Manifest, plan: JobPlan) -> None:
        body = copy.copy(raw)
        body["status"] = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        await self._kube.update_job_status(body)
        for event in plan.events:
            self._events.emit(raw, event)
        for count in plan.counts:
            self._metrics.count(count)


def _is_owned(pod: Manifest, job_uid: str) -> bool:
    return any(o.get("uid") == job_uid for o in pod["metadata"].get("ownerReferences", []))
