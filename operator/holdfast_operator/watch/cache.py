"""What the watch has delivered: jobs, pods and nodes as small facts, with their versions.

A fact may be stale, and after the watch was interrupted (410) an object may stand here that no longer exists. So a pass
may conclude from these facts only that there is nothing to do. Before it acts, it reads live (``Reconciler``), and what it
read or wrote is stored here at once. A complete list every now and then finds what the watch has missed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast_contract import keys
from holdfast_contract.identity import JobKey
from holdfast_operator.decide.facts import JobFact, NodeFact, PodFact
from holdfast_operator.gateway.kube import Json, Listed, Versions
from holdfast_operator.watch.manifest_facts import SpecError, node_fact, parse_job, pod_fact


@dataclass
class _Job:
    key: JobKey
    uid: str
    version: int
    raw: Json
    fact: JobFact | None = None  # made when a pass first needs it


@dataclass(frozen=True)
class _Pod:
    key: JobKey
    job_uid: str
    version: int
    node: str
    fact: PodFact | None  # None: the job does not own it


@dataclass(frozen=True)
class _Node:
    uid: str
    version: int
    digest: str
    fact: NodeFact


@dataclass(frozen=True)
class Snapshot:
    """A job, its pods in the order of their names, and the nodes with one of its pods."""

    raw: Json
    job: JobFact
    pods: tuple[PodFact, ...]
    nodes: Mapping[str, NodeFact] = field(default_factory=dict)


class WatchCache:
    """The facts, by what they belong to. Used on one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}
        self._pods: dict[str, _Pod] = {}
        self._pods_of: dict[str, set[str]] = {}  # UIDs of pods, by UID of their job
        self._nodes: dict[str, _Node] = {}
        self._announced: dict[str, str] = {}  # by node: the digest of the last version for which jobs were woken
        self._listed: dict[str, int] = {}  # by UID of a job: the version that its newest live list of pods shows
        self._doubted: set[JobKey] = set()

    # What passes and metrics read

    def jobs(self) -> list[Json]:
        """The live jobs. Safe from any thread."""
        return [job.raw for job in list(self._jobs.values())]

    def attempt(self, namespace: str, name: str) -> int | None:
        """The newest attempt of a job, as last seen; None if it is unknown."""
        job = self._jobs.get(JobKey(namespace, name))
        return None if job is None else (job.raw.get("status") or {}).get("attempt")

    def snapshot(self, namespace: str, name: str) -> Snapshot | None:
        """What is known about a job; None if a pass must read live instead."""
        job = self._jobs.get(JobKey(namespace, name))
        if job is None or not job.version or job.key in self._doubted:
            return None
        try:
            job.fact = job.fact or parse_job(job.raw)
        except SpecError:
            return None
        stored = [self._pods[uid] for uid in self._pods_of.get(job.uid, ())]
        pods = sorted((p.fact for p in stored if p.fact is not None), key=lambda p: p.name)
        names = {p.node for p in pods if p.node}
        if not all(p.version for p in stored) or not names <= self._nodes.keys():
            return None
        return Snapshot(job.raw, job.fact, tuple(pods), {name: self._nodes[name].fact for name in names})

    # Doubt

    def doubt(self, namespace: str, name: str) -> None:
        """The job's next pass must read live: something was written whose result is not known here."""
        self._doubted.add(JobKey(namespace, name))

    def trust(self, namespace: str, name: str) -> None:
        """A pass is about to read live."""
        self._doubted.discard(JobKey(namespace, name))

    # What was read or written

    def job_read(self, job: Json) -> None:
        """Store a job as a live read or a write returned it."""
        self._store_job(job)

    def job_is_gone(self, namespace: str, name: str) -> None:
        """Forget a job that does not exist."""
        self._doubted.discard(JobKey(namespace, name))
        job = self._jobs.pop(JobKey(namespace, name), None)
        if job is not None:
            self._listed.pop(job.uid, None)

    def pods_read(self, namespace: str, name: str, job_uid: str, listed: Listed) -> None:
        """Store a live list of a job's pods. Pods that the watch has shown in newer versions stay.

        Args:
            namespace: the job's namespace.
            name: the job's name.
            job_uid: UID of the job.
            listed: all its pods.
        """
        shown = _number(listed.version)
        for uid in list(self._pods_of.get(job_uid, ())):
            if self._pods[uid].version <= shown:
                self._drop_pod(uid)
        for pod in listed.items:
            self._store_pod(JobKey(namespace, name), pod)
        self._listed[job_uid] = max(shown, self._listed.get(job_uid, 0))

    def node_read(self, name: str, node: Json | None) -> None:
        """Store a node as a live read returned it; None: it does not exist."""
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._store_node(node)

    # What the watch delivers

    def job(self, event: str, job: Mapping[str, Any]) -> list[JobKey]:
        """Store a job that has changed. Returns the keys to wake: none if a pass has seen or written this version."""
        meta = job["metadata"]
        key = JobKey(meta["namespace"], meta["name"])
        if event == "DELETED":
            known = self._jobs.get(key)
            if known is not None and known.uid == meta["uid"]:
                self.job_is_gone(*key)
            return [key]
        return [key] if self._store_job(job) else []

    def pod(self, event: str, pod: Mapping[str, Any]) -> list[JobKey]:
        """Store a job's pod that has changed. Returns the keys to wake: none if a pass has seen this version."""
        meta = pod["metadata"]
        key = JobKey(meta["namespace"], meta["labels"][keys.LABEL_JOB_NAME])
        version = _number(meta.get("resourceVersion"))
        if version and version <= self._listed.get(meta["labels"].get(keys.LABEL_JOB_UID, ""), 0):
            return []
        if event == "DELETED":
            self._drop_pod(meta["uid"])
            return [key]
        return [key] if self._store_pod(key, pod) else []

    def node(self, event: str, node: Mapping[str, Any]) -> list[JobKey]:
        """Store a node that has changed. Returns the keys of jobs with pods on it, unless only its heartbeat changed."""
        name = node["metadata"]["name"]
        before = self._announced.get(name)  # a pass of another job may have read this version: it woke nobody
        if event == "DELETED":
            self._nodes.pop(name, None)
            changed = self._announced.pop(name, None) is not None
        else:
            self._store_node(node)
            self._announced[name] = _notice_digest(node)
            changed = before != self._announced[name]
        return sorted({pod.key for pod in self._pods.values() if pod.node == name}) if changed else []

    # Complete lists

    def replace_jobs(self, listed: Listed) -> None:
        """Store all jobs of a live list, and forget those that it does not show."""
        uids = {job["metadata"]["uid"] for job in listed.items}
        shown = _number(listed.version)
        for known in list(self._jobs.values()):
            if known.uid not in uids and known.version <= shown:
                self.job_is_gone(*known.key)
        for job in listed.items:
            self._store_job(job)

    def compare_pods(self, listed: Versions) -> set[JobKey]:
        """Forget pods that no longer exist. Returns the jobs of which the watch has missed a change; they are doubted."""
        shown = _number(listed.version)
        found = set()
        for uid, pod in list(self._pods.items()):
            current = listed.by_uid.get(uid)
            if current is None and pod.version <= shown:
                self._drop_pod(uid)
                found.add(pod.key)
            elif current is not None and _number(current) > pod.version:
                found.add(pod.key)
        found |= {JobKey(*key) for uid, key in listed.jobs.items() if uid not in self._pods}
        self._doubted |= found
        return found

    def compare_nodes(self, listed: Versions) -> set[JobKey]:
        """The same for nodes."""
        shown = _number(listed.version)
        ghosts = {n for n, node in self._nodes.items() if node.uid not in listed.by_uid and node.version <= shown}
        newer = {n for n, node in self._nodes.items() if _number(listed.by_uid.get(node.uid)) > node.version}
        for name in ghosts:
            del self._nodes[name]
            self._announced.pop(name, None)
        found = {pod.key for pod in self._pods.values() if pod.node in ghosts | newer}
        self._doubted |= found
        return found

    def _store_job(self, job: Mapping[str, Any]) -> bool:
        """Whether this is news."""
        meta = job["metadata"]
        key, version = JobKey(meta["namespace"], meta["name"]), _number(meta.get("resourceVersion"))
        known = self._jobs.get(key)
        if known is not None and known.version and version <= known.version:
            return False
        slim = {**job, "metadata": {k: v for k, v in meta.items() if k != "managedFields"}}
        self._jobs[key] = _Job(key, meta["uid"], version, slim)
        return True

    def _store_pod(self, key: JobKey, pod: Mapping[str, Any]) -> bool:
        meta = pod["metadata"]
        uid, version = meta["uid"], _number(meta.get("resourceVersion"))
        known = self._pods.get(uid)
        if known is not None and known.version and version <= known.version:
            return False
        job_uid = meta["labels"].get(keys.LABEL_JOB_UID, "")
        self._pods[uid] = _Pod(key, job_uid, version, pod.get("spec", {}).get("nodeName", ""), pod_fact(pod, job_uid))
        self._pods_of.setdefault(job_uid, set()).add(uid)
        return True

    def _drop_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        siblings = self._pods_of[pod.job_uid]
        siblings.discard(uid)
        if not siblings:
            del self._pods_of[pod.job_uid]

    def _store_node(self, node: Mapping[str, Any]) -> bool:
        meta = node["metadata"]
        name, version = meta["name"], _number(meta.get("resourceVersion"))
        known = self._nodes.get(name)
        if known is not None and known.version and version <= known.version:
            return False
        self._nodes[name] = _Node(meta["uid"], version, _notice_digest(node), node_fact(name, node))
        return True


def _number(version: str | None) -> int:
    """A resourceVersion as a number; 0 if it is none, and then nothing is concluded from it."""
    return int(version) if version is not None and version.isascii() and version.isdigit() else 0


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
