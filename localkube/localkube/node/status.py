"""The pod status that the API shows, computed from what a node knows about the containers. No input or output here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from localkube.node.objects import Json

WAITING = "ContainerCreating"
TERMINAL = ("Succeeded", "Failed")
# Without it a strategic merge patch would keep the addresses that an earlier process of this node reported.
_REPLACE = {"$patch": "replace"}


def timestamp(at: datetime | None = None) -> str:
    """An instant as the API writes it."""
    return (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ContainerState:
    """One container as its node sees it."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": WAITING}})
    last_state: Json = field(default_factory=dict)
    restart_count: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code, if the container has ended and does not run again."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def ever_ran(self) -> bool:
        """Whether it runs now or has run before."""
        return "waiting" not in self.state or "terminated" in self.last_state

    def to_json(self) -> Json:
        """The API's ContainerStatus."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "containerID": self.container_id,
            "state": self.state,
            "lastState": self.last_state,
            "restartCount": self.restart_count,
            "ready": self.ready,
            "started": self.started,
        }


def restarts(container: Json, pod_policy: str, exit_code: int, *, init: bool) -> bool:
    """Whether a container that ended with `exit_code` runs again.

    Its own rules count first, then its own policy, then `pod_policy`. `init` says that it is an init container.
    """
    for rule in container.get("restartPolicyRules") or []:
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or [])) == (codes.get("operator") == "In"):
            return bool(rule["action"] == "Restart")
    policy = container.get("restartPolicy") or ("OnFailure" if init and pod_policy == "Always" else pod_policy)
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def is_sidecar(container: Json) -> bool:
    """Whether an init container is a sidecar, which runs as long as its pod."""
    return bool(container.get("restartPolicy") == "Always")


@dataclass(frozen=True)
class PodView:
    """A pod's specification and the states of its containers, in the order of the specification."""

    pod: Json
    init: Sequence[ContainerState]
    main: Sequence[ContainerState]
    finished: bool = False
    """No container of this pod runs or will run."""

    @property
    def policy(self) -> str:
        return str(self.pod["spec"].get("restartPolicy") or "Always")

    @property
    def initialized(self) -> bool:
        """Whether every init container is done, and every sidecar started."""
        specs = self.pod["spec"].get("initContainers") or []
        return all(
            (state.started if is_sidecar(spec) else state.exit_code == 0)
            for spec, state in zip(specs, self.init, strict=True)
        )

    def phase(self) -> str:
        """The pod's phase by a kubelet's rules."""
        if self.finished:
            return "Succeeded" if self.initialized_or_over and self._all_succeeded() else "Failed"
        if not self.initialized and not any(state.ever_ran for state in self.main):
            return "Pending"
        if any(not state.ever_ran for state in self.main):
            return "Pending"
        return "Running"

    @property
    def initialized_or_over(self) -> bool:
        """Like `initialized`, but a sidecar that was stopped at the end counts as done."""
        specs = self.pod["spec"].get("initContainers") or []
        return all(is_sidecar(spec) or state.exit_code == 0 for spec, state in zip(specs, self.init, strict=True))

    def _all_succeeded(self) -> bool:
        return all(state.exit_code == 0 for state in self.main)

    def conditions(self, now: str) -> list[Json]:
        """The conditions that a node owns. A condition's time changes only with its status."""
        unready = [state.name for state in self.main if not state.ready]
        over = self.phase() in TERMINAL
        done = {"reason": "PodCompleted" if self.phase() == "Succeeded" else "PodFailed"}
        reasons = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
        lacking = self._gates_lacking()
        found: list[tuple[str, bool, Mapping[str, str]]] = [
            ("PodScheduled", True, {}),
            ("PodReadyToStartContainers", not over, {}),
            ("Initialized", self.initialized or (over and self.initialized_or_over),
             {"reason": "ContainersNotInitialized"}),
            ("ContainersReady", not unready and not over, done if over else reasons),
            ("Ready", not unready and not lacking and not over,
             done if over else (reasons if unready else {"reason": "ReadinessGatesNotReady", "message": lacking})),
        ]  # fmt: skip
        return [self._condition(kind, holds=holds, otherwise=why, now=now) for kind, holds, why in found]

    def _gates_lacking(self) -> str:
        known = {entry["type"]: entry["status"] for entry in (self.pod.get("status") or {}).get("conditions") or []}
        gates = [gate["conditionType"] for gate in self.pod["spec"].get("readinessGates") or []]
        lacking = [gate for gate in gates if known.get(gate) != "True"]
        return f"corresponding condition is not True: {', '.join(lacking)}" if lacking else ""

    def _condition(self, kind: str, *, holds: bool, otherwise: Mapping[str, str], now: str) -> Json:
        status = "True" if holds else "False"
        old = next(
            (item for item in (self.pod.get("status") or {}).get("conditions") or [] if item["type"] == kind), None
        )
        since = old["lastTransitionTime"] if old and old["status"] == status and old.get("lastTransitionTime") else now
        # Explicit nulls: otherwise a strategic merge patch would keep the reason of an earlier status.
        why = {"reason": None, "message": None} | ({} if holds else dict(otherwise))
        return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since} | why


def pod_status(view: PodView, *, pod_ip: str, host_ip: str, start_time: str, now: str) -> Json:
    """The part of the pod's status that its node owns.

    `pod_ip` and `host_ip` are the addresses of the pod and its node. `start_time` and `now` are times as the API has them:
    when the node took the pod, and the time for conditions that change.
    """
    status: Json = {
        "phase": view.phase(),
        "conditions": view.conditions(now),
        "hostIP": host_ip,
        "hostIPs": [_REPLACE, {"ip": host_ip}],
        "startTime": start_time,
        "containerStatuses": [state.to_json() for state in view.main],
    }
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [_REPLACE, {"ip": pod_ip}]}
    if view.init:
        status["initContainerStatuses"] = [state.to_json() for state in view.init]
    return status
