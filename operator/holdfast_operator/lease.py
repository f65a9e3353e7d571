"""Leader election by a Lease, with the semantics of client-go.

No two machines' wall clocks are compared: a candidate measures with its own monotonic clock for how long the record has
not changed. The Lease only keeps replicas out of each other's way. What prevents double work are conditional writes,
deterministic names and the attempt number.

The ``kubernetes`` client ships a leader election, too. It measures with the wall clock, blocks threads, sends requests
without a deadline and never releases the Lease, so this module stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_contract import keys
from holdfast_operator.gateway.kube import Json, Kube
from holdfast_operator.gateway.kube_errors import AlreadyExists, Conflict, KubeError

log = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class ElectionTimes:
    """The three times of an election, in seconds: duration > renew deadline > retry."""

    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


def identity(pod_name: str, host: str, port: int) -> str:
    """The holder's identity in the Lease: its pod, and the address at which it serves agents.

    A restarted container has the same identity.

    Args:
        pod_name: name of the replica's pod.
        host: IP address of the pod, version 4 or 6.
        port: port of the control endpoint.
    """
    return f"{pod_name}@[{host}]:{port}" if ":" in host else f"{pod_name}@{host}:{port}"


def address_of(holder: str) -> str:
    """host:port from a holder's identity; "" if it names no address."""
    return holder.partition("@")[2]


class LeaderElector:
    """Takes, renews and releases one Lease.

    ``on_change`` is called on the loop with True when this replica begins to lead and False when it no longer does.
    """

    def __init__(  # noqa: PLR0913  the lease's two names, the three times and the callback belong together
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        me: str,
        on_change: Callable[[bool], None],
        times: ElectionTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; ``run`` competes.

        Args:
            kube: access to the API server.
            namespace: namespace of the Lease.
            name: name of the Lease.
            me: this replica's ``identity``.
            on_change: see the class.
            times: the election's times; None means the defaults.
            clock: monotonic seconds.
        """
        self._kube, self._namespace, self._name, self._me = kube, namespace, name, me
        self._on_change, self._times, self._clock = on_change, times or ElectionTimes(), clock
        self._lease: Json | None = None
        self._record: dict[str, Any] | None = None
        self._record_changed_at = 0.0
        self._renewed_at: float | None = None  # None: not leading
        self._answered = False

    @property
    def leading(self) -> bool:
        """Whether this replica may act now: it holds the Lease and renewed it within the renew deadline.

        Computed from the clock, so it is right even if the process was paused and the loop has not run since.
        """
        return self._renewed_at is not None and self._clock() < self._renewed_at + self._times.renew_deadline_seconds

    @property
    def consulted(self) -> bool:
        """Whether the API server has answered about the Lease at least once."""
        return self._answered

    @property
    def leader_address(self) -> str:
        """host:port of the replica that the Lease names; "" if that is this one, or if the record is stale."""
        holder = str((self._record or {}).get("holderIdentity") or "")
        if not holder or holder == self._me or self._is_stale():
            return ""
        return address_of(holder)

    async def run(self) -> None:
        """Compete for the Lease until cancelled."""
        while True:
            await self._attempt()
            if self._renewed_at is not None and not self.leading:
                self._lose(f"not renewed within {self._times.renew_deadline_seconds:.0f} s")
            await asyncio.sleep(self._times.retry_seconds)

    async def release(self) -> None:
        """Release the Lease so that another replica need not wait until it is stale. Never raises."""
        if self._renewed_at is None or self._lease is None:
            return
        self._lose("released")
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._kube.update_lease({**self._lease, "spec": spec})

    async def _attempt(self) -> None:
        """Try once to take or renew the Lease. A leader gives up at its deadline even while the request still hangs."""
        began = self._clock()
        limit = self._times.renew_deadline_seconds
        if self._renewed_at is not None:
            limit = max(0.0, self._renewed_at + limit - began)
        try:
            async with asyncio.timeout(limit):
                held = await self._take_or_renew()
        except (KubeError, TimeoutError) as error:
            kind = type(error).__name__
            log.warning("lease %s/%s was neither taken nor renewed: %s: %s", self._namespace, self._name, kind, error)
            return
        self._answered = True
        if held:
            first, self._renewed_at = self._renewed_at is None, began
            if first:
                log.info("leading as %s", self._me)
                self._on_change(True)
        elif self._renewed_at is not None:
            self._lose("another replica holds the lease")

    def _lose(self, why: str) -> None:
        self._renewed_at = None
        log.warning("leading no longer: %s", why)
        self._on_change(False)

    async def _take_or_renew(self) -> bool:
        if self._renewed_at is not None and self._lease is not None:
            try:  # the usual case: one request
                self._remember(await self._kube.update_lease(self._renewal(self._lease)))
                return True
            except Conflict:
                pass
        lease = await self._kube.get_lease(self._namespace, self._name)
        if lease is None:
            return await self._create()
        self._remember(lease)
        holder = lease["spec"].get("holderIdentity") or ""
        if holder not in {"", self._me} and not self._is_stale():
            return False
        try:
            self._remember(await self._kube.update_lease(self._renewal(lease)))
        except Conflict:
            return False
        return True

    async def _create(self) -> bool:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {keys.LABEL_MANAGED_BY: keys.MANAGED_BY},
            },
            "spec": {},
        }
        try:
            self._remember(await self._kube.create_lease(self._namespace, self._renewal(lease)))
        except AlreadyExists:
            return False
        return True

    def _renewal(self, lease: Json) -> Json:
        """The Lease with this replica as holder. A change of holder is counted and dated."""
        old, now = lease.get("spec") or {}, _now()
        new = {
            **old,
            "holderIdentity": self._me,
            "leaseDurationSeconds": math.ceil(self._times.duration_seconds),  # rounded up: never shorter than promised
            "renewTime": now,
        }
        if old.get("holderIdentity") != self._me:
            new["acquireTime"] = now
            new["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + (1 if old else 0)
        return {**lease, "spec": new}

    def _remember(self, lease: Json) -> None:
        lease.setdefault("spec", {})
        self._lease = lease
        if lease["spec"] != self._record:
            self._record, self._record_changed_at = lease["spec"], self._clock()

    def _is_stale(self) -> bool:
        duration = float((self._record or {}).get("leaseDurationSeconds") or self._times.duration_seconds)
        return self._clock() >= self._record_changed_at + duration


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
