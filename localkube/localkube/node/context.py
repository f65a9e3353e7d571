"""What the parts of one node share."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from localkube.node.api import Api, ApiError
from localkube.node.containers import Sandbox
from localkube.node.images import Images
from localkube.node.objects import Json
from localkube.node.status import timestamp

log = logging.getLogger(__name__)


@dataclass
class NodeContext:
    """One node: its identity, settings and connections."""

    name: str
    address: str
    folder: Path
    api: Api
    probes: aiohttp.ClientSession
    sandbox: Sandbox
    images: Images
    backoff_seconds: float
    refresh_seconds: float
    service_address: tuple[str, int]  # where pods reach the API server
    hosts_text: Callable[[str], str] = lambda _namespace: ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def event(self, pod: Json, reason: str, message: str, kind: str = "Warning") -> None:
        """Create an Event about a pod in the background: its reason, message and type (Normal or Warning)."""
        task = asyncio.create_task(self._event(pod, reason, message, kind))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _event(self, pod: Json, reason: str, message: str, kind: str) -> None:
        meta, now = pod["metadata"], timestamp()
        involved = {"kind": "Pod", "apiVersion": "v1", "namespace": meta["namespace"], "name": meta["name"]}
        body = {
            "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
            "involvedObject": involved | {"uid": meta["uid"]},
            "reason": reason,
            "message": message[:1000],
            "type": kind,
            "source": {"component": "kubelet", "host": self.name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        log.info("%s/%s: %s: %s", meta["namespace"], meta["name"], reason, message)
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):  # events are best effort
            await self.api.request("POST", f"/api/v1/namespaces/{meta['namespace']}/events", body=body)
