"""One container over all its runs: start, probes, restarts with back-off, and end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.node.containers import (
    KILLED,
    ContainerPlan,
    ContainerProcess,
    Mount,
    StartFailed,
    inside,
    termination_message,
)
from localkube.node.context import NodeContext
from localkube.node.env import BadConfig, Environ, Fetch, command_line, expand
from localkube.node.images import Environment, UnknownImage
from localkube.node.objects import Json
from localkube.node.probes import Target, probe
from localkube.node.references import PodFacts
from localkube.node.status import ContainerState, restarts, timestamp
from localkube.node.volumes import Volumes

CONFIG_RETRY_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 300.0
BACKOFF_RESET_SECONDS = 600.0
KILL_SECONDS = 10.0
DEADLINE_POLL_SECONDS = 0.1
START_ERROR_CODE = 128
DEFAULT_MESSAGE_PATH = "/dev/termination-log"


@dataclass
class Deadline:
    """When the grace ends, on the monotonic clock. It can become earlier, not later."""

    at: float

    def left(self) -> float:
        """Seconds left, 0 if it has passed."""
        return max(0.0, self.at - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """Move it to this many seconds from now, unless it is earlier."""
        self.at = min(self.at, time.monotonic() + seconds)


@dataclass
class PodContext:
    """What the containers of one pod share."""

    node: NodeContext
    facts: PodFacts
    volumes: Volumes
    fetch: Fetch
    folder: Path
    hosts_file: Path
    hostname: str
    changed: Callable[[], None]


class Runner:
    """Runs one container of a pod until it is done or stopped."""

    def __init__(self, context: PodContext, spec: Json, *, init: bool) -> None:
        """`spec` is the container's part of the pod's specification; `init` says that it is an init container."""
        self.spec = spec
        self.init = init
        self.state = ContainerState(spec["name"], spec["image"])
        self._context = context
        self._process: ContainerProcess | None = None
        self._plan: ContainerPlan | None = None
        self._stopping = asyncio.Event()
        self._unhealthy = False
        self._failures = 0
        self.newest_log = -1
        """The number of the newest log file, -1 before the first."""
        self._restart_time = 0.0

    @property
    def _policy(self) -> str:
        return str(self._context.facts.pod["spec"].get("restartPolicy") or "Always")

    @property
    def running(self) -> bool:
        """Whether a process of this container runs now."""
        return self._process is not None

    def restore(self, old: Json) -> None:
        """Continue from the status that an earlier process of this node reported. A container that ran then has ended."""
        self.state.restart_count = int(old.get("restartCount") or 0)
        self.state.last_state = old.get("lastState") or {}
        was = old.get("state") or {}
        if "terminated" in was:
            self.state.state = was
        elif "running" in was:
            lost = {"exitCode": KILLED, "reason": "ContainerStatusUnknown", "finishedAt": timestamp(),
                    "startedAt": was["running"].get("startedAt"),
                    "message": "the node went away while the container was running"}  # fmt: skip
            self.state.state = {"terminated": lost}

    async def run(self) -> bool:
        """Run to the end. Returns whether the container succeeded."""
        code = self.state.exit_code  # under an earlier process of this node
        while not self._stopping.is_set():
            if code is not None and not await self._again(code):
                break
            code = await self._once()
        return self.state.exit_code == 0

    async def _again(self, code: int) -> bool:
        """Whether a container that ended with `code` runs again. Returns when the next run is due."""
        again = restarts(self.spec, self._policy, code, init=self.init)
        if self._unhealthy:
            again = again or restarts(self.spec, self._policy, 1, init=self.init)
        if not again or self._stopping.is_set():
            return False
        ended = self.state.state
        self._failures += 1
        delay = self._delay()
        self.state.last_state = ended
        self._restart_time = time.monotonic()
        if delay > 0:
            message = f"back-off {delay:g}s restarting failed container={self.spec['name']}"
            self._wait_for("CrashLoopBackOff", message)
            await self._pause(delay)
        if self._stopping.is_set():
            self.state.state, self.state.last_state = ended, {}
            self._context.changed()
            return False
        self.state.restart_count += 1
        return True

    def _delay(self) -> float:
        """The back-off: none before the first restart, then doubling. A long run without failure resets it."""
        if self._restart_time and time.monotonic() - self._restart_time > BACKOFF_RESET_SECONDS:
            self._failures = 1
        if self._failures <= 1:
            return 0.0
        base = self._context.node.backoff_seconds
        return float(min(base * 2 ** (self._failures - 2), BACKOFF_LIMIT_SECONDS))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _wait_for(self, reason: str, message: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        if self.state.state != waiting:
            self.state.state = waiting
            self.state.ready = self.state.started = False
            self._context.changed()
            if reason != "CrashLoopBackOff":
                self._context.node.event(self._context.facts.pod, "Failed", message)

    async def _once(self) -> int | None:
        """Run once. Returns the exit code, None if nothing was started."""
        plan = await self._prepare()
        if plan is None:
            return None
        self._plan, self._unhealthy = plan, False
        self.state.container_id = f"localkube://{self._context.facts.pod['metadata']['uid']}/{Path(plan.log).stem}"
        started = timestamp()
        try:
            process = await ContainerProcess.start(self._context.node.sandbox, plan)
        except StartFailed as problem:
            self._ended(START_ERROR_CODE, started, reason="StartError", message=str(problem))
            return START_ERROR_CODE
        self._process = process
        self.state.state = {"running": {"startedAt": started}}
        self.state.started = "startupProbe" not in self.spec
        self.state.ready = self.state.started and "readinessProbe" not in self.spec
        self._context.changed()
        checks = asyncio.create_task(self._probes(process))
        try:
            code = int(await asyncio.shield(process.exit_code))
        finally:
            checks.cancel()
        self._process = None
        message = termination_message(self.spec, self._message_file(plan), Path(plan.log), code)
        self._ended(code, started, reason="Completed" if code == 0 else "Error", message=message)
        return code

    def _ended(self, code: int, started: str, *, reason: str, message: str) -> None:
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": timestamp(),
                 "containerID": self.state.container_id}  # fmt: skip
        self.state.state = {"terminated": ended | ({"message": message} if message else {})}
        self.state.ready = self.init and code == 0
        self.state.started = False
        self._context.changed()

    async def _prepare(self) -> ContainerPlan | None:
        """The plan of the next run, once all that it refers to exists. None if the container is stopped before."""
        while not self._stopping.is_set():
            try:
                return await self._make_plan(self._context.node.images.find(self.spec["image"]))
            except UnknownImage as problem:
                self._wait_for("ErrImagePull", str(problem))
                await self._pause(CONFIG_RETRY_SECONDS)
                self.state.state = {"waiting": {"reason": "ImagePullBackOff", "message": str(problem)}}
                self._context.changed()
                await self._stopping.wait()  # a node's environments do not change while it runs
            except BadConfig as problem:
                self._wait_for("CreateContainerConfigError", str(problem))
                await self._pause(CONFIG_RETRY_SECONDS)
        return None

    async def _make_plan(self, environment: Environment) -> ContainerPlan:
        context = self._context
        security = (context.facts.pod["spec"].get("securityContext") or {}) | (self.spec.get("securityContext") or {})
        base = {
            "PATH": environment.path,
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "HOSTNAME": context.hostname,
            "KUBERNETES_SERVICE_HOST": context.node.service_address[0],
            "KUBERNETES_SERVICE_PORT": str(context.node.service_address[1]),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(context.node.service_address[1]),
        }
        env = await Environ(context.facts, self.spec, context.fetch, base).build()
        log = context.folder / self.spec["name"] / f"{self.state.restart_count}.log"
        self.newest_log = self.state.restart_count
        log.parent.mkdir(parents=True, exist_ok=True)
        log.with_suffix(".message").write_bytes(b"")
        message_path = self.spec.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH
        own = [Mount(str(log.with_suffix(".message")), message_path), Mount(str(context.hosts_file), "/etc/hosts")]
        return ContainerPlan(
            argv=command_line(self.spec, list(environment.entrypoint), env),
            env=env,
            cwd=self.spec.get("workingDir") or "/",
            hostname=context.hostname[:63],
            log=str(log),
            mounts=self._uncovered(self._mounts(env), environment.folders) + own,
            read_only_root=bool(security.get("readOnlyRootFilesystem")),
            no_new_privileges=security.get("allowPrivilegeEscalation") is False,
        )

    def _mounts(self, env: dict[str, str]) -> list[Mount]:
        mounts = self.spec.get("volumeMounts") or []
        if self._context.node.sandbox.isolation != "namespaces":
            foreign = [
                m["mountPath"] for m in mounts if not m["mountPath"].startswith("/var/run/secrets/kubernetes.io")
            ]
            if foreign:
                raise BadConfig(f"{', '.join(foreign)}: nothing can be mounted on a node with isolation 'process'")
        result = []
        for mount in mounts:
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "", env)
            source = self._context.volumes.source(mount["name"], sub_path)
            result.append(Mount(str(source), mount["mountPath"], bool(mount.get("readOnly"))))
        return result

    def _uncovered(self, volumes: list[Mount], image: Sequence[str]) -> list[Mount]:
        """The volumes, and the folders of the image that a volume would hide, since an image's files are the host's."""
        hidden = [
            folder for folder in image if any(folder.startswith(f"{volume.target.rstrip('/')}/") for volume in volumes)
        ]
        return volumes + [Mount(folder, folder) for folder in hidden if Path(folder).is_dir()]

    def _message_file(self, plan: ContainerPlan) -> Path:
        return Path(plan.log).with_suffix(".message")

    async def _inside(self, argv: list[str], seconds: float) -> tuple[int, str]:
        if self._process is None or self._plan is None:
            return 1, "the container is not running"
        return await self._process.run_inside(self._context.node.sandbox, inside(self._plan, argv), seconds)

    def _target(self) -> Target:
        return Target(self.spec, self._context.facts.pod_ip, self._inside, self._context.node.probes)

    async def _probes(self, process: ContainerProcess) -> None:
        """All probes of one run, the startup probe first."""
        target = self._target()
        if "startupProbe" in self.spec and not await self._start_up(target, process):
            return
        async with asyncio.TaskGroup() as group:
            if "readinessProbe" in self.spec:
                group.create_task(probe(target, self.spec["readinessProbe"], self._settle_readiness))
            if "livenessProbe" in self.spec:
                group.create_task(probe(target, self.spec["livenessProbe"], self._settle_liveness))

    async def _start_up(self, target: Target, process: ContainerProcess) -> bool:
        """Whether the startup probe succeeds. It must end with its success and with the run that it is for."""
        startup = asyncio.create_task(probe(target, self.spec["startupProbe"], self._settle_startup))
        try:
            while not self.state.started:
                if startup.done() or process.exit_code.done():
                    return False
                await asyncio.sleep(DEADLINE_POLL_SECONDS)
        finally:
            startup.cancel()
        return True

    async def _settle_startup(self, good: bool, problem: str) -> None:  # noqa: FBT001  (a callback's shape)
        if not good:
            await self._fail("Startup", problem, self.spec["startupProbe"])
            return
        self.state.started = True
        self.state.ready = "readinessProbe" not in self.spec
        self._context.changed()

    async def _settle_readiness(self, good: bool, problem: str) -> None:  # noqa: FBT001
        if self.state.ready != good:
            self.state.ready = good
            self._context.changed()
            if problem:
                self._context.node.event(self._context.facts.pod, "Unhealthy", f"Readiness probe failed: {problem}")

    async def _settle_liveness(self, good: bool, problem: str) -> None:  # noqa: FBT001
        if not good:
            await self._fail("Liveness", problem, self.spec["livenessProbe"])

    async def _fail(self, what: str, problem: str, spec: Json) -> None:
        """A probe has failed: end this run. The restart policy decides whether there is another."""
        self._unhealthy = True
        self._context.node.event(self._context.facts.pod, "Unhealthy", f"{what} probe failed: {problem}")
        grace = spec.get("terminationGracePeriodSeconds")
        if grace is None:
            grace = self._context.facts.pod["spec"].get("terminationGracePeriodSeconds", 30)
        await self._end_process(Deadline(time.monotonic() + grace))

    async def shut_down(self, deadline: Deadline) -> None:
        """End this container for good: preStop hook, SIGTERM, and SIGKILL at the deadline."""
        self._stopping.set()
        hook = ((self.spec.get("lifecycle") or {}).get("preStop")) if self._process else None
        if hook and deadline.left() > 0:
            problem = await self._target().check(hook, deadline.left())
            if problem:
                self._context.node.event(self._context.facts.pod, "FailedPreStopHook", problem)
        await self._end_process(deadline)

    async def _end_process(self, deadline: Deadline) -> None:
        process = self._process
        if process is None:
            return
        if deadline.left() > 0:
            process.terminate()
        while deadline.left() > 0:
            if await process.wait(min(DEADLINE_POLL_SECONDS, deadline.left())) is not None:
                return
        process.kill()
        await process.wait(KILL_SECONDS)
