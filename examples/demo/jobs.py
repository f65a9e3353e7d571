"""The TrainingJob that the demo applies: the character-level transformer on two workers with two devices each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_contract import keys

SOURCE_MOUNT: Final = "/workspace"
CHECKPOINT_MOUNT: Final = "/checkpoints"
OUTPUT_MOUNT: Final = "/output"
COMPILED_MOUNT: Final = "/compiled"
REPLICAS: Final = 2
DEVICES_PER_WORKER: Final = 2
BATCH: Final = 4
GRACE_SECONDS: Final = 20
NOTICE_SECONDS: Final = 25


@dataclass(frozen=True)
class Training:
    """One training run, and where its files are on this machine."""

    name: str
    steps: int
    every_steps: int
    seed: int
    repository: Path
    checkpoints: Path
    output: Path
    compiled: Path
    skip_batch: int | None = None
    pause_seconds: float = 0.0

    @property
    def digest_file(self) -> Path:
        """Where rank 0 writes the digest of the final parameters."""
        return self.output / f"{self.name}.digest"

    @property
    def run_folder(self) -> Path:
        """The run's checkpoint folder, as a path on this machine."""
        return self.checkpoints / self.name


def manifest(training: Training, *, namespace: str) -> dict[str, Any]:
    """Return the TrainingJob as a user would write it."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {"name": training.name, "namespace": namespace},
        "spec": {
            "replicas": REPLICAS,
            "checkpoint": {
                "path": CHECKPOINT_MOUNT,
                "run": training.name,
                "every": {"steps": training.every_steps},
                "keep": {"latest": 4},
            },
            "preemption": {"defaultDeadlineSeconds": NOTICE_SECONDS},
            "recovery": {"strategy": "InPlace", "maxFailures": 10},
            "template": {"spec": _pod_spec(training)},
        },
    }


def _pod_spec(training: Training) -> dict[str, Any]:
    folders = {
        "source": (training.repository, SOURCE_MOUNT),
        "checkpoints": (training.checkpoints, CHECKPOINT_MOUNT),
        "output": (training.output, OUTPUT_MOUNT),
        "compiled": (training.compiled, COMPILED_MOUNT),
    }
    return {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "tolerations": [],
        "containers": [
            {
                "name": keys.TRAINER_CONTAINER,
                "image": "holdfast/trainer:demo",
                "command": ["python", f"{SOURCE_MOUNT}/examples/char_lm/train.py", *_arguments(training)],
                "env": [
                    {"name": "JAX_PLATFORMS", "value": "cpu"},
                    # On a shared volume, so that the program compiles once and not in every new pod.
                    {"name": "JAX_COMPILATION_CACHE_DIR", "value": COMPILED_MOUNT},
                ],
                "volumeMounts": [{"name": n, "mountPath": mount} for n, (_, mount) in folders.items()],
            }
        ],
        "volumes": [
            {"name": n, "hostPath": {"path": str(path), "type": "Directory"}} for n, (path, _) in folders.items()
        ],
    }


def _arguments(training: Training) -> list[str]:
    arguments = {
        "--steps": training.steps,
        "--layers": 1,
        "--width": 32,
        "--batch": BATCH,
        "--seed": training.seed,
        "--cpu-devices": DEVICES_PER_WORKER,
        "--pause-seconds": training.pause_seconds,
        "--digest-out": f"{OUTPUT_MOUNT}/{training.digest_file.name}",
    }
    if training.skip_batch is not None:
        arguments["--skip-batch"] = training.skip_batch
    return [str(word) for pair in arguments.items() for word in pair]
