"""The Node object, its status heartbeat, and its Lease. When the Lease expires, the control plane calls the node dead."""

import asyncio
import contextlib
import logging
import os
import platform
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

from localkube.node.api import STRATEGIC_PATCH, Api, ApiError
from localkube.node.objects import Json
from localkube.node.references import machine
from localkube.node.status import timestamp

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STATUS_SECONDS = 10.0
RENEWALS_PER_LEASE = 4
CONFLICT, NOT_FOUND = 409, 404

log = logging.getLogger(__name__)


@dataclass
class Registration:
    """Registers a Node and keeps its status and Lease up to date."""

    api: Api
    name: str
    address: str
    port: int
    lease_seconds: int
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Json] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)
    _uid: str = ""

    def _node(self) -> Json:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": self._arch(),
                  "localkube.dev/process-node": "true"}  # fmt: skip
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels | self.labels},
            "spec": {"taints": self.taints},
            "status": self._status(ready=True, why="the node program is running"),
        }

    def _status(self, *, ready: bool, why: str) -> Json:
        capacity = {**machine(), "pods": "110", **self.capacity}
        reasons = {"MemoryPressure": "KubeletHasSufficientMemory", "DiskPressure": "KubeletHasNoDiskPressure",
                   "PIDPressure": "KubeletHasSufficientPID"}  # fmt: skip
        conditions = [{"type": kind, "status": "False", "reason": reason} for kind, reason in reasons.items()]
        conditions.append({
            "type": "Ready", "status": "True" if ready else "False",
            "reason": "KubeletReady" if ready else "KubeletNotReady", "message": why,
        })  # fmt: skip
        now = timestamp()
        version = os.uname()
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "conditions": [item | {"lastHeartbeatTime": now, "lastTransitionTime": now} for item in conditions],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": version.release,
                "osImage": "localkube process node", "containerRuntimeVersion": "localkube://0",
                "kubeletVersion": "v1.36.0-localkube", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": self._arch(),
            },
        }  # fmt: skip

    def _arch(self) -> str:
        return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

    async def register(self) -> None:
        """Create the Node, or take over an existing one of this name. Raises ApiError."""
        own = self._node()
        try:
            found = await self.api.request("POST", "/api/v1/nodes", body=own)
        except ApiError as problem:
            if problem.status != CONFLICT:
                raise
            patch = {"metadata": {"labels": own["metadata"]["labels"]}}
            found = await self.api.patch(f"/api/v1/nodes/{self.name}", patch)
            await self._heartbeat(ready=True, why="the node program is running")
        self._uid = found["metadata"]["uid"]
        await self._renew()

    async def _heartbeat(self, *, ready: bool, why: str) -> None:
        status = self._status(ready=ready, why=why)
        path = f"/api/v1/nodes/{self.name}"
        current = (await self.api.get(path)).get("status", {}).get("conditions") or []
        known = {item["type"]: item for item in current}
        for item in status["conditions"]:  # a heartbeat without a change of status is no transition
            old = known.get(item["type"])
            if old and old["status"] == item["status"]:
                item["lastTransitionTime"] = old["lastTransitionTime"]
        # Extended resources that others have added stay: this kind of patch sets only what it names.
        await self.api.patch(f"{path}/status", {"status": status}, STRATEGIC_PATCH)

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": self.lease_seconds,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self.api.patch(f"{LEASES}/{self.name}", {"spec": spec})
        except ApiError as problem:
            if problem.status != NOT_FOUND:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}
            meta = {"name": self.name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            await self.api.request("POST", LEASES, body={"metadata": meta, "spec": spec})

    async def keep_lease(self) -> None:
        """Renew the Lease for ever."""
        while True:
            await asyncio.sleep(self.lease_seconds / RENEWALS_PER_LEASE)
            await self._quietly(self._renew())

    async def keep_status(self) -> None:
        """Send the node's status for ever."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            await self._quietly(self._heartbeat(ready=True, why="the node program is running"))

    async def _quietly(self, request: Awaitable[None]) -> None:
        try:
            await request
        except (ApiError, aiohttp.ClientError, TimeoutError) as problem:
            log.warning("node %s: %s", self.name, problem or type(problem).__name__)

    async def leave(self, *, delete: bool) -> None:
        """Report that the node shuts down, or delete its object."""
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
            if delete:
                await self.api.delete(f"/api/v1/nodes/{self.name}", uid=self._uid, grace_seconds=0)
            else:
                await self._heartbeat(ready=False, why="node is shutting down")
