"""Definition and models judge alike: whatever one of them refuses, the other refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client
from pydantic import ValidationError

from holdfast_contract.api import TrainingJob
from tests.support.crd_server import Jobs, connect, install_definition, refusal
from tests.support.manifests import Manifest, training_job, with_value

# The server's answer is asked for in a dry run, so examples leave nothing behind in the namespace that they share.
agreement = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def jobs(cluster: Any, namespace: str) -> Iterator[Jobs]:
    kubeconfig = Path(cluster.kubeconfig)
    install_definition(kubeconfig)
    with connect(kubeconfig, namespace) as found:
        yield found


def judge_alike(jobs: Jobs, manifest: Manifest) -> bool:
    """Whether both accept; fails if they differ."""
    try:
        jobs.create(manifest, dry_run=True)
        said = ""
    except client.ApiException as error:
        said = refusal(error)
    try:
        TrainingJob.model_validate(manifest)
        model = ""
    except ValidationError as error:
        model = str(error)
    assert bool(said) == bool(model), f"server: {said or 'accepts'}\nmodels: {model or 'accept'}"
    return not said


segments = st.sampled_from(["", ".", "..", "...", "a", "checkpoints", ".a", "a..", "gs:", "a:b"])


@agreement
@given(
    path=st.lists(segments, min_size=1, max_size=5).map("/".join), mount=st.sampled_from(["/", "/checkpoints", "/a/"])
)
def test_paths_and_mounts(jobs: Jobs, path: str, mount: str) -> None:
    job = with_value(training_job(), "spec.checkpoint.path", path)
    judge_alike(jobs, with_value(job, "spec.template.spec.containers[0].volumeMounts[0].mountPath", mount))


seconds = st.integers(-1, 3)
adaptive = st.fixed_dictionaries({}, optional={"minSeconds": seconds, "maxSeconds": seconds})
every = st.fixed_dictionaries({}, optional={"seconds": seconds, "steps": seconds, "adaptive": adaptive})
keep = st.fixed_dictionaries(
    {},
    optional={
        "latest": st.integers(0, 4),
        "best": st.integers(0, 2),
        "metric": st.sampled_from(["", "loss", "9", "eval/loss", "a b"]),
        "mode": st.sampled_from(["min", "max", "mean"]),
        "everySteps": st.integers(0, 2),
    },
)


@agreement
@given(every=every, keep=keep)
def test_intervals_and_retention(jobs: Jobs, every: Manifest, keep: Manifest) -> None:
    judge_alike(
        jobs, with_value(with_value(training_job(), "spec.checkpoint.every", every), "spec.checkpoint.keep", keep)
    )


key = st.fixed_dictionaries({"key": st.sampled_from(["", "a", "example.com/a"])}, optional={"value": st.just("v")})
condition = st.fixed_dictionaries({"type": st.just("Gone")}, optional={"status": st.sampled_from(["True", "Maybe"])})
notice = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "C", "-", "a.b"])},
    optional={"taint": key, "label": key, "annotation": key, "condition": condition, "deadlineSeconds": seconds},
)


@agreement
@given(notices=st.lists(notice, max_size=3))
def test_notices(jobs: Jobs, notices: list[Manifest]) -> None:
    judge_alike(jobs, with_value(training_job(), "spec.preemption.notices", notices))


@agreement
@given(name=st.text("ab.-", min_size=1, max_size=4) | st.integers(49, 54).map(lambda n: "a" * n))
def test_names(jobs: Jobs, name: str) -> None:
    """The models leave the characters of a name to the server, whose rule for all objects it is."""
    try:
        jobs.create(training_job(name), dry_run=True)
    except client.ApiException as error:
        if "RFC 1123" not in refusal(error):
            with pytest.raises(ValidationError):
                TrainingJob.model_validate(training_job(name))
    else:
        TrainingJob.model_validate(training_job(name))
