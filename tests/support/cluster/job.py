"""One TrainingJob of an end-to-end test: how it is written, and what can be seen of it from outside."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubernetes import client

from holdfast_contract import keys
from holdfast_contract.runfolder import RunFolder
from tests.support.cluster import processes
from tests.support.cluster.world import REPOSITORY, REQUEST_SECONDS, World
from tests.support.polling import until
from tests.support.training import compiled

START_SECONDS: Final = 60.0
CHANGE_SECONDS: Final = 40.0
WORKSPACE: Final = "/workspace"
CHECKPOINTS: Final = "/checkpoints"
COMPILED: Final = "/compiled"
TINY: Final = ("python", f"{WORKSPACE}/tests/support/training/tiny_train.py")
GRACE_SECONDS: Final = 10

Object = dict[str, Any]


@dataclass(frozen=True)
class Script:
    """What the trainer container runs."""

    command: tuple[str, ...]
    replicas: int = 2

    @classmethod
    def tiny(cls, *, steps: int, step_seconds: float = 0.05, more: Sequence[str] = ()) -> Script:
        """The tiny training program, two ranks."""
        return cls((*TINY, "--steps", str(steps), "--step-seconds", str(step_seconds), *more))

    @classmethod
    def python(cls, source: str, replicas: int = 1) -> Script:
        """A program that is no training at all: it needs no JAX and starts at once."""
        return cls(("python", "-c", source), replicas)


@dataclass
class Job:
    """A TrainingJob in the cluster. ``storage`` is the folder of this machine that its pods see as checkpoints."""

    world: World
    namespace: str
    storage: Path
    script: Script
    name: str = "job"
    every_steps: int = 1000
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Top-level fields of the spec, merged over the defaults."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the pod's spec."""
    read_only: bool = False

    @property
    def _at(self) -> tuple[str, str, str, str]:
        return keys.API_GROUP, keys.VERSION, self.namespace, keys.PLURAL

    def manifest(self) -> Object:
        """The TrainingJob as a user would write it."""
        spec: Object = {
            "replicas": self.script.replicas,
            "checkpoint": {"path": CHECKPOINTS, "run": "run", "every": {"steps": self.every_steps}},
            "template": {"spec": self._pod_spec()},
        }
        for name, value in copy.deepcopy(dict(self.spec)).items():
            spec[name] = {**spec[name], **value} if isinstance(value, dict) and name in spec else value
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": metadata, "spec": spec}

    def _pod_spec(self) -> Object:
        folders = {
            "workspace": (REPOSITORY, WORKSPACE),
            "checkpoints": (self.storage, CHECKPOINTS),
            "compiled": (compiled.folder(), COMPILED),
        }
        mounts: list[Object] = [{"name": n, "mountPath": mount} for n, (_, mount) in folders.items()]
        mounts[1]["readOnly"] = self.read_only
        trainer = {
            "name": keys.TRAINER_CONTAINER,
            "image": "holdfast/trainer:e2e",
            "command": list(self.script.command),
            "env": [{"name": n, "value": v} for n, v in (ENVIRONMENT | IN_PODS).items()],
            "volumeMounts": mounts,
        }
        volumes = [{"name": n, "hostPath": {"path": str(p), "type": "Directory"}} for n, (p, _) in folders.items()]
        return {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "containers": [trainer],
            "volumes": volumes,
            **self.pod,
        }

    # Verbs

    def apply(self) -> Job:
        """Create it."""
        self.storage.mkdir(parents=True, exist_ok=True)
        self.world.objects.create_namespaced_custom_object(*self._at, self.manifest(), _request_timeout=REQUEST_SECONDS)
        return self

    def patch(self, spec: Object) -> None:
        """Merge into the spec."""
        self.world.objects.patch_namespaced_custom_object(
            *self._at, self.name, {"spec": spec}, _request_timeout=REQUEST_SECONDS
        )

    def delete(self) -> None:
        """Ask for its deletion."""
        self.world.objects.delete_namespaced_custom_object(*self._at, self.name, _request_timeout=REQUEST_SECONDS)

    def wait_gone(self, seconds: float) -> None:
        """Wait until neither the job nor any process of its pods is left."""
        uid = self.uid
        until(lambda: self.get() is None, seconds, f"{self.name} is gone", seen=self.describe)
        until(
            lambda: not processes.of_job(uid), seconds, f"no process of {self.name}", seen=lambda: processes.of_job(uid)
        )

    # What is seen

    def get(self) -> Object | None:
        """The object, or None."""
        try:
            found: Object = self.world.objects.get_namespaced_custom_object(
                *self._at, self.name, _request_timeout=REQUEST_SECONDS
            )
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise
        return found

    @property
    def uid(self) -> str:
        """The object's UID."""
        found = self.get()
        assert found is not None, f"{self.name} does not exist"
        return str(found["metadata"]["uid"])

    @property
    def status(self) -> Status:
        """The status now."""
        return Status((self.get() or {}).get("status") or {})

    def until(self, holds: Callable[[Status], Any], what: str, seconds: float = CHANGE_SECONDS) -> Status:
        """The first status for which ``holds``; fails with the whole story if that takes too long."""

        def found() -> Status | None:
            return status if holds(status := self.status) else None

        return until(found, seconds, what, seen=self.describe)

    def until_step(self, step: int, *, attempt: int | None = None) -> Status:
        """Wait until a step is completed, in an attempt if that is given."""
        return self.until(
            lambda s: s.step >= step and attempt in {None, s.raw["progress"]["attempt"]},
            f"step {step} in attempt {attempt}",
            START_SECONDS,
        )

    def until_trains(self, attempt: int) -> Status:
        """Wait until all workers complete steps of an attempt."""
        return self.until(
            lambda s: s.active == attempt and s.holds("Running"), f"attempt {attempt} trains", START_SECONDS
        )

    def until_condition(self, kind: str, reason: str, *, value: str = "True", seconds: float = CHANGE_SECONDS) -> str:
        """Wait for a condition with a reason; its message."""
        status = self.until(
            lambda s: (s.condition(kind).get("status"), s.condition(kind).get("reason")) == (value, reason),
            f"{kind}={value} because of {reason}",
            seconds,
        )
        return str(status.condition(kind).get("message", ""))

    def pods(self) -> dict[int, Object]:
        """The newest pod of each worker that is not being deleted."""
        newest: dict[int, Object] = {}
        for pod in self.all_pods():
            if not pod["metadata"].get("deletionTimestamp"):
                newest[int(pod["metadata"]["labels"][keys.LABEL_REPLICA_INDEX])] = pod
        return newest

    def all_pods(self) -> list[Object]:
        """Every pod of a job of this name, in the order of creation."""
        selector = f"{keys.LABEL_JOB_NAME}={self.name}"
        answer = self.world.core.list_namespaced_pod(
            self.namespace, label_selector=selector, _preload_content=False, _request_timeout=REQUEST_SECONDS
        )
        pods: list[Object] = json.loads(answer.data)["items"]
        return sorted(pods, key=lambda p: int(p["metadata"]["labels"][keys.LABEL_CREATED_IN_ATTEMPT]))

    def pod_uids(self) -> dict[int, str]:
        """UID of each worker's pod."""
        return {index: pod["metadata"]["uid"] for index, pod in self.pods().items()}

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of each Event about it, oldest first."""
        return [(e["reason"], e["message"]) for e in self.raw_events()]

    def raw_events(self) -> list[Object]:
        """The Events about it, oldest first."""
        answer = self.world.core.list_namespaced_event(
            self.namespace,
            field_selector=f"involvedObject.name={self.name}",
            _preload_content=False,
            _request_timeout=REQUEST_SECONDS,
        )
        found: list[Object] = json.loads(answer.data)["items"]
        return sorted(found, key=lambda e: str(e["eventTime"]))

    @property
    def run_folder(self) -> RunFolder:
        """The run's folder of checkpoints on this machine."""
        return RunFolder(self.storage / "run")

    def log(self, index: int) -> str:
        """What a worker's pod has written, all attempts in it."""
        pod = self.pods()[index]["metadata"]["name"]
        return self.world.kubectl("logs", "-n", self.namespace, pod, "-c", keys.TRAINER_CONTAINER)

    def digest(self) -> str:
        """The digest of the final state, once the job has succeeded."""
        self.until(lambda s: s.holds("Succeeded"), "success", START_SECONDS)
        last = self.log(0).rpartition(" begins: ")[2]  # the log of a pod goes on over restarts in place
        found = re.findall(r"^digest ([0-9a-f]{64})$", last, re.MULTILINE)
        assert len(found) == 1, f"found {found} in:\n{last[-3000:]}"
        return str(found[0])

    def describe(self) -> str:
        """All that helps to understand a failure."""
        events = "\n".join(f"{reason}: {message}" for reason, message in self.events())
        pods = [f"{p['metadata']['name']} {p['spec'].get('nodeName')} {p['status']['phase']}" for p in self.all_pods()]
        logs = [
            self.world.cluster.kubectl(
                "logs", "-n", self.namespace, p["metadata"]["name"], "--tail=40", check=False
            ).stdout
            for p in self.all_pods()
        ]
        status = json.dumps(self.status.raw, indent=1)
        return "\n".join([status, events, *pods, *logs, self.world.logs()[-4000:], self.world.node_logs()])


@dataclass(frozen=True)
class Status:
    """A job's status, with names for what tests ask for."""

    raw: Object

    @property
    def step(self) -> int:
        """Last completed step."""
        return int((self.raw.get("progress") or {}).get("step") or 0)

    @property
    def attempt(self) -> int:
        """The newest attempt."""
        return int(self.raw.get("attempt") or 0)

    @property
    def active(self) -> int:
        """The attempt whose processes may run."""
        return int(self.raw.get("activeAttempt") or 0)

    @property
    def restarts(self) -> dict[str, int]:
        """Restarts per cause."""
        return dict(self.raw.get("restarts") or {})

    @property
    def preemption(self) -> Object:
        """The last notice and what became of it."""
        return dict(self.raw.get("preemption") or {})

    def checkpoint(self, which: str) -> tuple[int, int]:
        """Attempt and step of ``newest``, ``pinned`` or ``restored``; (0, 0) if there is none."""
        point = (self.raw.get("checkpoint") or {}).get(which) or {}
        return int(point.get("attempt", 0)), int(point.get("step", 0))

    def condition(self, kind: str) -> Object:
        """A condition, or an empty dictionary."""
        return next((c for c in self.raw.get("conditions") or [] if c["type"] == kind), {})

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return bool(self.condition(kind).get("status") == "True")


ENVIRONMENT: Final = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": "1"}
"""Of every trainer here and of the undisturbed run that it is compared with."""
IN_PODS: Final = {"JAX_COMPILATION_CACHE_DIR": COMPILED}
