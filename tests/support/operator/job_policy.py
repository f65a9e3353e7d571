"""What a trainer finds in its environment when its job says so: the whole way from the manifest through the pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast_contract import keys
from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_operator.decide import children
from holdfast_operator.decide.actions import CreatePod
from holdfast_operator.decide.facts import JobFact
from tests.support.cluster.manifests import training_job


def policy_of(**checkpoint: Any) -> str:
    """HOLDFAST_CHECKPOINT_POLICY of a job with these fields of ``spec.checkpoint`` (``every``, ``keep``, ``healthy``)."""
    raw = training_job("lm")["spec"]
    raw["checkpoint"] = {"path": "/checkpoints", **checkpoint}
    spec = TrainingJobSpec.model_validate(raw)
    job = JobFact("ns", "lm", "uid-1", 1, datetime(2026, 1, 1, tzinfo=UTC), spec, TrainingJobStatus())
    pod = children.pod(job, CreatePod(0, 1), children.ControlSettings("https://holdfast.hf.svc:8443", "PEM"))
    (trainer,) = (c for c in pod["spec"]["containers"] if c["name"] == keys.TRAINER_CONTAINER)
    (value,) = (e["value"] for e in trainer["env"] if e["name"] == keys.ENV_CHECKPOINT_POLICY)
    return str(value).replace("$$", "$")
