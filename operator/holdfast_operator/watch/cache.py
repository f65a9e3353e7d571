"""The cache of what the watch delivered. It may be stale: it only tells which jobs to wake, and feeds metrics and logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast_contract import keys
from holdfast_contract.identity import JobKey
from holdfast_operator.gateway.kube import Json


class WatchCache:
    """Live jobs, the node of each job's pods, and a digest of each node. Used on one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, Json] = {}
        self._pods: dict[str, tuple[JobKey, str]] = {}
        self._nodes: dict[str, str] = {}

    def jobs(self) -> list[Json]:
        """The live jobs (metadata and status). Safe from any thread."""
        return list(self._jobs.values())

    def attempt(self, namespace: str, name: str) -> int | None:
        """The newest attempt of a job, as last seen; None if it is unknown."""
        for job in self.jobs():
            if (job["metadata"]["namespace"], job["metadata"]["name"]) == (namespace, name):
                return (job.get("status") or {}).get("attempt")
        return None

    def replace_jobs(self, jobs: Iterable[Json]) -> None:
        """Replace all jobs by those of a live list."""
        self._jobs = {job["metadata"]["uid"]: _slim(job) for job in jobs}

    def job(self, event: str, job: Mapping[str, Any]) -> list[JobKey]:
        """Store a job that has changed. Returns the keys to wake."""
        meta = job["metadata"]
        if event == "DELETED":
            self._jobs.pop(meta["uid"], None)
        else:
            self._jobs[meta["uid"]] = _slim(job)
        return [JobKey(meta["namespace"], meta["name"])]

    def pod(self, event: str, pod: Mapping[str, Any]) -> list[JobKey]:
        """Store the node of a job's pod that has changed. Returns the keys to wake."""
        meta = pod["metadata"]
        key = JobKey(meta["namespace"], meta["labels"][keys.LABEL_JOB_NAME])
        node = pod.get("spec", {}).get("nodeName")
        if event == "DELETED":
            self._pods.pop(meta["uid"], None)
        elif node:
            self._pods[meta["uid"]] = (key, node)
        return [key]

    def node(self, event: str, node: Mapping[str, Any]) -> list[JobKey]:
        """Store a node that has changed. Returns the keys of jobs with pods on it, unless only its heartbeat changed."""
        meta = node["metadata"]
        now = "" if event == "DELETED" else _notice_digest(node)
        if self._nodes.get(meta["uid"]) == now:
            return []
        if now:
            self._nodes[meta["uid"]] = now
        else:
            self._nodes.pop(meta["uid"], None)
        return sorted({key for key, name in self._pods.values() if name == meta["name"]})


def _slim(job: Mapping[str, Any]) -> Json:
    return {"metadata": dict(job["metadata"]), "status": dict(job.get("status") or {})}


def _notice_digest(node: Mapping[str, Any]) -> str:
    """A digest of everything in a node that may be a notice; heartbeat times, images and addresses are left out."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    conditions = [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions") or []]
    parts = [
        {name: meta.get(name) for name in ("labels", "annotations", "deletionTimestamp")},
        spec.get("taints"),
        spec.get("unschedulable"),
        conditions,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
