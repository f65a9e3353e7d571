"""Definition and models judge alike: whatever one of them refuses, the other refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client
from pydantic import ValidationError

from holdfast_contract.api import TrainingJob
from tests.support.cluster.crd_server import Jobs, refusal
from tests.support.cluster.manifests import Manifest, training_job, with_value

# The server's answer is asked for in a dry run, so examples leave nothing behind in the namespace that they share.
agreement = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
metric = st.sampled_from(["", "loss", "9", "eval/loss", "a b"])
listed = st.lists(st.integers(0, 4), max_size=3)
# What is wrong is rare enough for whole rules to be right, and what is right is not the rule.
adaptive = st.fixed_dictionaries(
    {}, optional={"minSeconds": seconds, "maxSeconds": seconds, "priorFailures": st.integers(0, 3)}
)
bounds = {"minSeconds": st.integers(1, 2), "baseSeconds": st.integers(1, 3), "maxSeconds": st.integers(2, 4)}
unstable = st.fixed_dictionaries(
    bounds,
    optional={
        "metric": metric,
        "window": st.sampled_from([7, 8, 1024, 1025]),
        "tolerance": st.sampled_from([0, 0.5, 1, 1.5]),
    },
)


def one_of(**rules: st.SearchStrategy[Any]) -> st.SearchStrategy[Manifest]:
    """Mostly one of the fields, sometimes none or several."""
    alone = [value.map(lambda found, name=name: {name: found}) for name, value in rules.items()]
    return st.one_of(*alone, st.fixed_dictionaries({}, optional=rules))


save_rules = {"seconds": seconds, "steps": seconds, "adaptive": adaptive, "atSteps": listed, "whenUnstable": unstable}
save_rule = one_of(**save_rules)
all_of = st.lists(save_rule, max_size=2)
save_term = one_of(**save_rules, allOf=all_of)
every = one_of(**save_rules, allOf=all_of, anyOf=st.lists(save_term, max_size=2), onlyAtEnd=st.booleans())
keep_rules = {
    "latest": st.integers(0, 4),
    "best": st.integers(0, 2),
    "metric": metric,
    "mode": st.sampled_from(["min", "max", "mean"]),
    "everySteps": st.integers(0, 2),
    "everySeconds": st.integers(0, 2),
    "steps": listed,
}
keep_rule = one_of(**keep_rules)
keep_all_of = st.lists(keep_rule, max_size=2)
keep_any_of = st.lists(one_of(**keep_rules, allOf=keep_all_of), max_size=2)
keep = one_of(**keep_rules, allOf=keep_all_of, anyOf=keep_any_of, all=st.booleans())
healthy = st.fixed_dictionaries({}, optional={"finite": st.lists(metric, max_size=2)})


@agreement
@given(every=every)
def test_intervals(jobs: Jobs, every: Manifest) -> None:
    judge_alike(jobs, with_value(training_job(), "spec.checkpoint.every", every))


@agreement
@given(keep=keep, healthy=st.none() | healthy)
def test_retention_and_health(jobs: Jobs, keep: Manifest, healthy: Manifest | None) -> None:
    job = with_value(training_job(), "spec.checkpoint.keep", keep)
    judge_alike(jobs, job if healthy is None else with_value(job, "spec.checkpoint.healthy", healthy))


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
