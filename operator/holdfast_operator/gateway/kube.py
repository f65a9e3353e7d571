"""The operator's requests to the API server: one method per permission, with plain dictionaries as payload.

Reads are live (quorum) reads. Every update is conditional on a resourceVersion, every delete on a UID. ``None`` means
that the API server said the object does not exist, never that it did not answer. Paths are written here because the
generated methods of the ``kubernetes`` client build model objects (see ``transport``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kubernetes.client import Configuration

from holdfast_contract import keys
from holdfast_operator.gateway import kube_errors
from holdfast_operator.gateway.transport import DEADLINE_SECONDS, MERGE_PATCH, METADATA_LIST, THREADS, Transport

Json = dict[str, Any]

LIST_SECONDS: Final = 30.0
REVIEW_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 5.0
"""Below the lease's renew deadline, so that one hung request does not cost the leadership."""
EVENT_SECONDS: Final = 5.0
PAGE: Final = 500
"""How many objects one request of a long list returns."""

_JOBS: Final = f"/apis/{keys.API_VERSION}"


@dataclass(frozen=True)
class Listed:
    """A live list, and the version of the cluster that it shows."""

    items: list[Json]
    version: str


@dataclass(frozen=True)
class Versions:
    """The versions of a kind's objects by UID, and the version of the cluster that the list shows."""

    by_uid: dict[str, str]
    jobs: dict[str, tuple[str, str]]
    """Namespace and name of each pod's job, by the pod's UID."""
    version: str


def merged_lists(lists: Sequence[Listed]) -> Listed:
    """The lists of several namespaces as one. It is as old as the oldest of them."""
    return Listed([item for one in lists for item in one.items], min((one.version for one in lists), key=_age))


def merged_versions(lists: Sequence[Versions]) -> Versions:
    """The versions in several namespaces as one. They are as old as the oldest of them."""
    by_uid = {uid: version for one in lists for uid, version in one.by_uid.items()}
    jobs = {uid: key for one in lists for uid, key in one.jobs.items()}
    return Versions(by_uid, jobs, min((one.version for one in lists), key=_age))


def _age(version: str) -> int:
    """Versions of one cluster are numbers that grow; one that is none counts as the oldest."""
    return int(version) if version.isdecimal() else 0


class Kube:
    """Typed access to one API server."""

    def __init__(self, configuration: Configuration, *, threads: int = THREADS) -> None:
        """``configuration`` must belong to this client alone; at most ``threads`` requests are sent at once."""
        self._transport = Transport(configuration, threads)

    def close(self) -> None:
        """Release threads and connections."""
        self._transport.close()

    # TrainingJobs

    async def get_job(self, namespace: str, name: str) -> Json | None:
        """The TrainingJob, or None if it does not exist."""
        return await self._get(_job(namespace, name), f"get {keys.PLURAL} {namespace}/{name}")

    async def list_jobs(self, namespace: str | None) -> Listed:
        """All TrainingJobs of a namespace; None: of the whole cluster."""
        path = f"{_JOBS}/{keys.PLURAL}" if namespace is None else f"{_JOBS}/namespaces/{_q(namespace)}/{keys.PLURAL}"
        return await self._list(path, f"list {keys.PLURAL} {namespace or 'everywhere'}", {})

    async def update_job_status(self, job: Json) -> Json:
        """Replace ``status`` if ``metadata.resourceVersion`` is still current.

        Raises:
            Conflict: the job changed since it was read; read and decide again.
            NotFound: the job no longer exists.
            Invalid: the status does not match the CRD's schema.
        """
        namespace, name = _full_name(job)
        _require_version(job)
        what = f"update {keys.PLURAL}/status {namespace}/{name}"
        return await self._transport.request("PUT", f"{_job(namespace, name)}/status", what=what, body=job)

    async def patch_job_finalizers(
        self, namespace: str, name: str, finalizers: list[str], resource_version: str
    ) -> Json:
        """Replace the list of finalizers if the job has not changed.

        Args:
            namespace: the job's namespace.
            name: the job's name.
            finalizers: the complete new list.
            resource_version: the version that was read.

        Raises:
            Conflict: the job is at another version.
            NotFound: the job no longer exists.
        """
        body = {"metadata": {"finalizers": finalizers, "resourceVersion": resource_version}}
        what = f"patch {keys.PLURAL} {namespace}/{name}"
        return await self._transport.request(
            "PATCH", _job(namespace, name), what=what, body=body, content_type=MERGE_PATCH
        )

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this job. A job that no longer exists is a success.

        Args:
            namespace: the job's namespace.
            name: the job's name.
            uid: the job's UID.

        Raises:
            Conflict: the name belongs to another UID now.
        """
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._delete(_job(namespace, name), f"delete {keys.PLURAL} {namespace}/{name}", body)

    # Pods

    async def list_pods(self, namespace: str, label_selector: str) -> Listed:
        """The pods that match now, finished ones included."""
        what, query = f"list pods {namespace} ({label_selector})", {"labelSelector": label_selector}
        return await self._list(_pods(namespace), what, query)

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """The pod, or None."""
        return await self._get(f"{_pods(namespace)}/{_q(name)}", f"get pods {namespace}/{name}")

    async def create_pod(self, namespace: str, manifest: Json) -> Json:
        """Create a pod. Raises AlreadyExists, Forbidden (quota, pod security), Invalid."""
        name = manifest.get("metadata", {}).get("name", "")
        return await self._transport.request(
            "POST", _pods(namespace), what=f"create pods {namespace}/{name}", body=manifest
        )

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Delete exactly this pod. A pod that no longer exists is a success.

        Args:
            namespace: the pod's namespace.
            name: the pod's name.
            uid: the pod's UID.
            grace_seconds: grace period; None means the pod's own.

        Raises:
            Conflict: the name belongs to another UID now.
        """
        body: Json = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._delete(f"{_pods(namespace)}/{_q(name)}", f"delete pods {namespace}/{name}", body)

    # Nodes

    async def get_node(self, name: str) -> Json | None:
        """The node, or None."""
        return await self._get(f"/api/v1/nodes/{_q(name)}", f"get nodes {name}")

    async def list_nodes(self) -> list[Json]:
        """All nodes."""
        return (await self._list("/api/v1/nodes", "list nodes", {})).items

    # Versions alone, to compare with what the watch delivered

    async def pod_versions(self, namespace: str | None, label_selector: str) -> Versions:
        """Versions of the pods that match, in one namespace; None: in the whole cluster."""
        path = "/api/v1/pods" if namespace is None else _pods(namespace)
        return await self._versions(path, "list pods", {"labelSelector": label_selector})

    async def node_versions(self) -> Versions:
        """Versions of the nodes."""
        return await self._versions("/api/v1/nodes", "list nodes", {})

    async def _versions(self, path: str, what: str, query: dict[str, str]) -> Versions:
        """All pages show the cluster as it was at the first one."""
        found: dict[str, str] = {}
        jobs: dict[str, tuple[str, str]] = {}
        page = {**query, "limit": str(PAGE)}
        while True:
            answer = await self._transport.request(
                "GET", path, what=what, query=page, accept=METADATA_LIST, deadline_seconds=LIST_SECONDS
            )
            for item in (i["metadata"] for i in answer.get("items") or []):
                found[item["uid"]] = item["resourceVersion"]
                if job := (item.get("labels") or {}).get(keys.LABEL_JOB_NAME):
                    jobs[item["uid"]] = (item["namespace"], job)
            meta = answer.get("metadata") or {}
            if not meta.get("continue"):
                return Versions(found, jobs, str(meta.get("resourceVersion") or ""))
            page = {**page, "continue": meta["continue"]}

    # Events and tokens

    async def create_event(self, namespace: str, event: Json) -> None:
        """Create one Event (events.k8s.io/v1). Raises AlreadyExists."""
        what = f"create events {namespace}"
        await self._transport.request("POST", _events(namespace), what=what, body=event, deadline_seconds=EVENT_SECONDS)

    async def patch_event_series(self, namespace: str, name: str, series: Json) -> None:
        """Write how often an Event was repeated; no other field of an Event may change.

        Args:
            namespace: the Event's namespace.
            name: the Event's name.
            series: count and time of the last repetition, as the API has them.

        Raises:
            NotFound: the API server no longer keeps the Event.
        """
        what, path = f"patch events {namespace}/{name}", f"{_events(namespace)}/{_q(name)}"
        await self._transport.request(
            "PATCH",
            path,
            what=what,
            body={"series": series},
            content_type=MERGE_PATCH,
            deadline_seconds=EVENT_SECONDS,
        )

    async def review_token(self, token: str, audiences: list[str]) -> Json:
        """The ``status`` of a TokenReview of this token. The token appears in no error and no log line."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        }
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        answer = await self._transport.request(
            "POST", path, what="create tokenreviews", body=body, deadline_seconds=REVIEW_SECONDS
        )
        status = answer.get("status")
        return status if isinstance(status, dict) else {}

    # Leases

    async def get_lease(self, namespace: str, name: str) -> Json | None:
        """The Lease, or None."""
        return await self._get(f"{_leases(namespace)}/{_q(name)}", f"get leases {namespace}/{name}", LEASE_SECONDS)

    async def create_lease(self, namespace: str, lease: Json) -> Json:
        """Create a Lease. Raises AlreadyExists if another replica was faster."""
        what = f"create leases {namespace}/{lease['metadata']['name']}"
        return await self._transport.request(
            "POST", _leases(namespace), what=what, body=lease, deadline_seconds=LEASE_SECONDS
        )

    async def update_lease(self, lease: Json) -> Json:
        """Replace a Lease if its resourceVersion is still current. Raises Conflict."""
        namespace, name = _full_name(lease)
        _require_version(lease)
        what = f"update leases {namespace}/{name}"
        path = f"{_leases(namespace)}/{_q(name)}"
        return await self._transport.request("PUT", path, what=what, body=lease, deadline_seconds=LEASE_SECONDS)

    async def _get(self, path: str, what: str, deadline_seconds: float = DEADLINE_SECONDS) -> Json | None:
        try:
            return await self._transport.request("GET", path, what=what, deadline_seconds=deadline_seconds)
        except kube_errors.NotFound as error:
            # Only "no such object" is an answer; a missing resource (no CRD) or a proxy's 404 page is not.
            if error.reason != "NotFound" or not error.message.endswith(" not found"):
                raise
            return None

    async def _list(self, path: str, what: str, query: dict[str, str]) -> Listed:
        answer = await self._transport.request("GET", path, what=what, query=query, deadline_seconds=LIST_SECONDS)
        items = answer.get("items")
        if not isinstance(items, list):
            raise kube_errors.Unavailable(what, 200, "NotAList", "the answer has no list of items")
        return Listed(items, str((answer.get("metadata") or {}).get("resourceVersion") or ""))

    async def _delete(self, path: str, what: str, body: Json) -> None:
        try:
            await self._transport.request("DELETE", path, what=what, body=body)
        except kube_errors.NotFound as error:
            if error.reason != "NotFound":
                raise


def _q(segment: str) -> str:
    return quote(segment, safe="")


def _job(namespace: str, name: str) -> str:
    return f"{_JOBS}/namespaces/{_q(namespace)}/{keys.PLURAL}/{_q(name)}"


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{_q(namespace)}/pods"


def _events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{_q(namespace)}/events"


def _leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{_q(namespace)}/leases"


def _full_name(item: Json) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _require_version(item: Json) -> None:
    if not item["metadata"].get("resourceVersion"):
        raise ValueError(
            "`metadata.resourceVersion` is required but not set: an update needs the version that was read"
        )
