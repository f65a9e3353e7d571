"""One pod on its node: volumes, containers, status, and its end."""

import asyncio
import contextlib
import logging
import shutil
import time
from functools import partial

import aiohttp

from localkube.node import addresses
from localkube.node.api import STRATEGIC_PATCH, ApiError
from localkube.node.context import NodeContext
from localkube.node.logs import Found
from localkube.node.objects import Json
from localkube.node.references import PodFacts
from localkube.node.runner import Deadline, PodContext, Runner
from localkube.node.status import TERMINAL, PodView, is_sidecar, pod_status, timestamp
from localkube.node.volumes import NotMounted, Volumes

MOUNT_RETRY_SECONDS = 1.0
STATUS_RETRY_SECONDS = 0.5
SIDECAR_POLL_SECONDS = 0.05
GONE = (404, 409)

log = logging.getLogger(__name__)


def _is_growing(runner: Runner, previous: bool) -> bool:  # noqa: FBT001  (bound by position)
    return runner.running and not previous


class PodWorker:
    """Runs one pod, from its binding to this node to the removal of its last file."""

    def __init__(self, node: NodeContext, pod: Json) -> None:
        self.node = node
        self.pod = pod
        meta = pod["metadata"]
        self.uid: str = meta["uid"]
        self.path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._folder = node.folder / "pods" / self.uid
        self._claim = addresses.claim()
        self._facts = PodFacts(pod, self._claim.address, node.address)
        self._volumes = Volumes(self._facts, self._folder / "volumes", node.api, self._fetch)
        self._start_time = (pod.get("status") or {}).get("startTime") or timestamp()
        context = PodContext(
            node, self._facts, self._volumes, self._fetch, self._folder / "containers", self._folder / "hosts",
            pod["spec"].get("hostname") or meta["name"], self._changed,
        )  # fmt: skip
        spec = pod["spec"]
        self.init = [Runner(context, container, init=True) for container in spec.get("initContainers") or []]
        self.main = [Runner(context, container, init=False) for container in spec["containers"]]
        self._dirty = asyncio.Event()
        self._exists = True
        self._finished = False
        self._failure: Json = {}
        self._sent: Json | None = None
        self._deadline: Deadline | None = None
        self._leaving = asyncio.Event()
        self.task = asyncio.create_task(self._work())

    async def _fetch(self, kind: str, name: str) -> Json:
        return await self.node.api.get(f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{kind}/{name}")

    def update(self, pod: Json) -> None:
        """Take a newer version of the pod: labels, conditions that others set, a deletion and its grace."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            self.stop(30 if grace is None else int(grace))
        self._changed()

    def stop(self, grace_seconds: float, failure: Json | None = None) -> None:
        """End the pod within this time, which a later call can only shorten. `failure` becomes part of its status."""
        self._failure |= failure or {}
        if self._deadline is None:
            self._deadline = Deadline(time.monotonic() + grace_seconds)
        self._deadline.shorten(grace_seconds)
        self._leaving.set()

    def vanished(self) -> None:
        """The object is gone from the API: kill everything and report nothing more."""
        self._exists = False
        self.stop(0)

    def refresh_hosts(self) -> None:
        """Write the hosts file, with the names of the pod and of Services, that its containers have as /etc/hosts."""
        spec, address = self.pod["spec"], self._claim.address
        name = spec.get("hostname") or self.pod["metadata"]["name"]
        names = [name]
        if spec.get("subdomain"):
            qualified = f"{name}.{spec['subdomain']}.{self.pod['metadata']['namespace']}.svc.cluster.local"
            names = [qualified, name]
        namespace = self.pod["metadata"]["namespace"]
        text = f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{address}\t{' '.join(names)}\n"
        for alias in spec.get("hostAliases") or []:
            text += f"{alias['ip']}\t{' '.join(alias.get('hostnames') or [])}\n"
        text += self.node.hosts_text(namespace)
        path = self._folder / "hosts"
        if not path.exists():
            path.write_text(text)
        elif path.read_text() != text:
            with path.open("r+") as file:  # in place, for the containers have this file mounted
                file.write(text)
                file.truncate()

    def find_log(self, container: str, *, previous: bool) -> Found | None:
        """A container's newest or `previous` log, and whether it grows."""
        for runner in [*self.init, *self.main]:
            if runner.spec["name"] == container:
                number = runner.newest_log - (1 if previous else 0)
                path = self._folder / "containers" / container / f"{number}.log"
                if number < 0 or not path.exists():
                    return None
                return path, partial(_is_growing, runner, previous)
        return None

    async def _work(self) -> None:
        """The whole life of the pod; never raises."""
        status = asyncio.create_task(self._report_changes())
        try:
            if (self.pod.get("status") or {}).get("phase") in TERMINAL:
                self._finished = True
                await self._leaving.wait()
            else:
                await self._live()
                self._finished = True
                self._changed()
                await self._leaving.wait()
        except Exception:
            log.exception("pod %s", self.path)
        finally:
            status.cancel()
            await asyncio.gather(status, return_exceptions=True)
            await self._clean_up()

    async def _live(self) -> None:
        """Run the containers until they are done or the pod must end. Afterwards no process of it runs."""
        self._restore()
        self._changed()
        life = asyncio.create_task(self._run_containers())
        leaving = asyncio.create_task(self._leaving.wait())
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        timer = asyncio.get_running_loop().call_later(limit, self._too_long) if limit else None
        await asyncio.wait([life, leaving], return_when=asyncio.FIRST_COMPLETED)
        if timer:
            timer.cancel()
        deadline = self._deadline or Deadline(time.monotonic() + self._grace)
        if not life.done():
            await asyncio.gather(*(runner.shut_down(deadline) for runner in self.main))
        await asyncio.gather(*(runner.shut_down(deadline) for runner in reversed(self.init)))
        leaving.cancel()
        if not life.done():
            done, _ = await asyncio.wait([life], timeout=0.2)
            if not done:
                life.cancel()
        await asyncio.gather(life, leaving, return_exceptions=True)
        if not life.cancelled() and (problem := life.exception()):
            log.error("pod %s", self.path, exc_info=problem)

    @property
    def _grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _too_long(self) -> None:
        message = "Pod was active on the node longer than the specified deadline"
        self.stop(self._grace, {"reason": "DeadlineExceeded", "message": message, "phase": "Failed"})

    def _restore(self) -> None:
        status = self.pod.get("status") or {}
        for runners, key in ((self.init, "initContainerStatuses"), (self.main, "containerStatuses")):
            old = {entry["name"]: entry for entry in status.get(key) or []}
            for runner in runners:
                if runner.spec["name"] in old:
                    runner.restore(old[runner.spec["name"]])

    async def _run_containers(self) -> None:
        await self._mount()
        refresh = asyncio.create_task(self._keep_fresh())
        sidecars: list[asyncio.Task[bool]] = []
        try:
            for runner in self.init:
                if is_sidecar(runner.spec):
                    sidecars.append(asyncio.create_task(runner.run()))
                    while not runner.state.started:  # noqa: ASYNC110  a probe decides, at its own pace
                        await asyncio.sleep(SIDECAR_POLL_SECONDS)
                elif not await runner.run():
                    return
            await asyncio.gather(*(runner.run() for runner in self.main))
            deadline = Deadline(time.monotonic() + self._grace)
            await asyncio.gather(*(runner.shut_down(deadline) for runner in reversed(self.init)))
            await asyncio.gather(*sidecars)
        finally:
            refresh.cancel()
            for sidecar in sidecars:
                sidecar.cancel()

    async def _mount(self) -> None:
        """Set up the volumes, and try again until that succeeds."""
        reported = ""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.refresh_hosts()
        while True:
            try:
                await self._volumes.set_up()
                return
            except (NotMounted, aiohttp.ClientError, TimeoutError) as problem:
                if str(problem) != reported:
                    reported = str(problem)
                    self.node.event(self.pod, "FailedMount", f"MountVolume.SetUp failed for {reported}")
                await asyncio.sleep(MOUNT_RETRY_SECONDS)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.node.refresh_seconds)
            try:
                await self._volumes.refresh()
            except (NotMounted, aiohttp.ClientError, TimeoutError) as problem:
                log.warning("pod %s: %s", self.path, problem)

    def _changed(self) -> None:
        self._dirty.set()

    def _status(self) -> Json:
        view = PodView(self.pod, [r.state for r in self.init], [r.state for r in self.main], finished=self._finished)
        own = pod_status(view, pod_ip=self._claim.address, host_ip=self.node.address,
                         start_time=self._start_time, now=timestamp())  # fmt: skip
        if self._finished and self._failure:
            conditions = own["conditions"] + self._failure.get("conditions", [])
            own |= self._failure | {"conditions": conditions}
        return own

    async def _report_changes(self) -> None:
        while self._exists:
            await self._dirty.wait()
            self._dirty.clear()
            if (self.pod.get("status") or {}).get("phase") not in TERMINAL:
                await self._report()

    async def _report(self) -> bool:
        """Send the status if it has changed. Returns whether the API has it now."""
        status = self._status()
        if status == self._sent or not self._exists:
            return True
        try:
            patch = {"metadata": {"uid": self.uid}, "status": status}
            await self.node.api.patch(f"{self.path}/status", patch, STRATEGIC_PATCH)
        except ApiError as problem:
            if problem.status in GONE:
                self.vanished()
                return True
            log.warning("status of %s: %s", self.path, problem)
        except (aiohttp.ClientError, TimeoutError) as problem:
            log.warning("status of %s: %s", self.path, problem or type(problem).__name__)
        else:
            self._sent = status
            return True
        await asyncio.sleep(STATUS_RETRY_SECONDS)
        self._dirty.set()
        return False

    async def _clean_up(self) -> None:
        """Send the last status, remove the pod's files, and remove its object if that was deleted."""
        self._finished = True
        already = (self.pod.get("status") or {}).get("phase") in TERMINAL
        while self._exists and not already and not await self._report():
            pass
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._claim.release()
        while self._exists and "deletionTimestamp" in self.pod["metadata"]:
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                await self.node.api.delete(self.path, uid=self.uid, grace_seconds=0)
                return
            await asyncio.sleep(STATUS_RETRY_SECONDS)
