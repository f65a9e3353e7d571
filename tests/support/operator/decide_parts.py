"""What the pure world double is made of: a valid spec, agents, nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast_contract import keys
from holdfast_contract.api import TrainingJobSpec
from holdfast_contract.sync import Report
from holdfast_operator.decide.facts import NodeCondition, NodeFact

START = datetime(2026, 1, 1, tzinfo=UTC)


def spec(**changes: Any) -> TrainingJobSpec:
    """A valid spec with two workers; ``changes`` replace top-level fields (camelCase)."""
    container = {
        "name": keys.TRAINER_CONTAINER,
        "image": "trainer:1",
        "command": ["python", "train.py"],
        "volumeMounts": [{"name": "data", "mountPath": "/checkpoints"}],
    }
    volumes = [{"name": "data", "emptyDir": {}}]
    body: dict[str, Any] = {
        "replicas": 2,
        "checkpoint": {"path": "/checkpoints", "run": "r"},
        "template": {"spec": {"containers": [container], "volumes": volumes}},
    }
    return TrainingJobSpec.model_validate(body | changes)


@dataclass
class Agent:
    """The agent of one pod and its trainer."""

    report: Report
    spoke_at: datetime
    silent: bool = False

    def say(self, now: datetime, **changes: Any) -> None:
        self.report = replace(self.report, **changes)
        self.spoke_at = now


def takes_pods(node: NodeFact) -> bool:
    """Whether the scheduler would place a pod there."""
    return not node.unschedulable and all(taint.effect not in {"NoSchedule", "NoExecute"} for taint in node.taints)


def ready_node(name: str) -> NodeFact:
    """A healthy node."""
    return NodeFact(name, conditions=(NodeCondition("Ready", "True", "", START),))
