"""The one valid TrainingJob that tests start from, as a builder, and edits of it by path."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from holdfast_contract import keys

Manifest = dict[str, Any]

_INDEX = re.compile(r"\[(\d+)\]")


def training_job(
    name: str = "char-lm",
    *,
    namespace: str | None = None,
    replicas: int = 2,
    command: tuple[str, ...] = ("python", "-m", "train"),
    path: str = "/checkpoints",
    spec: Mapping[str, Any] | None = None,
) -> Manifest:
    """A valid TrainingJob whose trainer mounts ``path``; ``spec`` replaces whole top-level fields of the spec."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "template": pod_template(command=command, path=path),
            "checkpoint": {"path": path, "every": {"steps": 100}},
            **copy.deepcopy(dict(spec or {})),
        },
    }


def pod_template(*, command: tuple[str, ...], path: str) -> Manifest:
    """A template with what real ones have and Holdfast does not model: image, resources, a volume's source."""
    trainer = {
        "name": keys.TRAINER_CONTAINER,
        "image": "holdfast/trainer:test",
        "command": list(command),
        "env": [{"name": "XLA_FLAGS", "value": "--xla_cpu_multi_thread_eigen=false"}],
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "checkpoints", "mountPath": path}],
    }
    volume = {"name": "checkpoints", "hostPath": {"path": "/var/lib/checkpoints", "type": "DirectoryOrCreate"}}
    return {
        "metadata": {"labels": {"team": "language"}},
        "spec": {"containers": [trainer], "volumes": [volume], "restartPolicy": "Never"},
    }


def with_value(manifest: Manifest, path: str, value: object) -> Manifest:
    """A copy with the field at ``path`` (``spec.template.spec.containers[0].command``) set; parents are created."""
    edited = copy.deepcopy(manifest)
    parent, last = _parent(edited, path)
    parent[last] = value
    return edited


def without(manifest: Manifest, path: str) -> Manifest:
    """A copy without the field at ``path``, which must be there."""
    edited = copy.deepcopy(manifest)
    parent, last = _parent(edited, path)
    del parent[last]
    return edited


def _parent(manifest: Manifest, path: str) -> tuple[Any, str | int]:
    steps: list[str | int] = []
    for part in path.split("."):
        name, *_ = part.split("[")
        steps += [name, *(int(i) for i in _INDEX.findall(part))]
    node: Any = manifest
    for step in steps[:-1]:
        node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
    return node, steps[-1]
