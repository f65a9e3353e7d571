"""The models read what users write, refuse what the API server refuses, and lose nothing of a template."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast_contract import keys
from holdfast_contract.api import MAX_NAME, EverySpec, TrainingJob, TrainingJobStatus
from holdfast_contract.api_spec import MAX_REPLICAS
from tests.support.cluster.bad_manifests import CREATED, Bad
from tests.support.cluster.manifests import training_job, with_value


def test_the_valid_job_is_read_with_its_defaults() -> None:
    job = TrainingJob.model_validate(training_job())
    assert job.spec.checkpoint.every == EverySpec(steps=100)
    assert (job.spec.checkpoint.keep.latest, job.spec.checkpoint.take_over) == (None, False)
    assert (job.spec.preemption.default_deadline_seconds, job.spec.recovery.strategy) == (25, "InPlace")
    assert (job.spec.hang.step_seconds, job.spec.hang.start_seconds) == (600, 1800)
    assert job.status == TrainingJobStatus()


def test_group_and_kind_are_those_of_the_contract() -> None:
    job = TrainingJob.model_validate(training_job())
    assert (job.api_version, job.kind) == (keys.API_VERSION, keys.KIND)


def test_without_an_interval_a_save_is_due_every_ten_minutes() -> None:
    job = TrainingJob.model_validate(with_value(training_job(), "spec.checkpoint", {"path": "/checkpoints"}))
    assert job.spec.checkpoint.every == EverySpec(seconds=600)


def test_run_is_the_uid_unless_named() -> None:
    unnamed = with_value(training_job(), "metadata.uid", "4f1c")
    assert TrainingJob.model_validate(unnamed).run == "4f1c"
    assert TrainingJob.model_validate(with_value(unnamed, "spec.checkpoint.run", "lm")).run == "lm"


def test_a_template_comes_out_as_it_went_in() -> None:
    template = training_job()["spec"]["template"]
    assert TrainingJob.model_validate(training_job()).spec.template.to_manifest() == template


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(extra=json_values)
def test_fields_of_a_pod_that_holdfast_does_not_know_pass_through(extra: Any) -> None:
    manifest = training_job()
    for path in ("spec.template.spec.someFutureField", "spec.template.spec.containers[0].someFutureField"):
        manifest = with_value(manifest, path, extra)
    assert TrainingJob.model_validate(manifest).spec.template.to_manifest() == manifest["spec"]["template"]


def test_a_template_may_be_changed_after_rendering_without_changing_the_model() -> None:
    job = TrainingJob.model_validate(training_job())
    job.spec.template.to_manifest()["spec"]["containers"][0]["env"].append({"name": "MINE", "value": "1"})
    assert [e.name for e in job.spec.template.trainer.env] == ["XLA_FLAGS"]


@pytest.mark.parametrize("bad", CREATED, ids=lambda b: b.id)
def test_models_refuse_what_the_server_refuses(bad: Bad) -> None:
    with pytest.raises(ValidationError) as refusal:
        TrainingJob.model_validate(bad.applied_to(training_job()))
    assert bad.model, "every wrong object on its own is the models' business, too"
    assert [text for text in bad.model if text not in str(refusal.value)] == []


def test_each_wrong_manifest_tells_one_fault_of_its_own() -> None:
    ids = [bad.id for bad in CREATED]
    assert len(set(ids)) == len(ids) >= 35


def test_the_longest_name_makes_the_longest_pod_name() -> None:
    pod = f"{'a' * MAX_NAME}-{MAX_REPLICAS - 1}-999999"
    assert len(pod) == 63
    TrainingJob.model_validate(training_job("a" * MAX_NAME))


@pytest.mark.parametrize("path", ["/checkpoints", "/checkpoints/", "/checkpoints/a/b", "/checkpoints/..a/b.."])
def test_paths_below_a_mount_are_accepted(path: str) -> None:
    TrainingJob.model_validate(with_value(training_job(), "spec.checkpoint.path", path))


def test_status_of_a_newer_operator_is_read() -> None:
    status = TrainingJobStatus.model_validate({"attempt": 3, "somethingNew": {"a": 1}})
    assert status.attempt == 3


def test_status_goes_out_and_comes_back() -> None:
    raw = {
        "observedGeneration": 2,
        "attempt": 4,
        "restarts": {"Preemption": 2},
        "failureTimes": ["2026-01-02T03:04:05Z"],
        "checkpoint": {"newest": {"attempt": 3, "step": 120, "digest": "ab", "committedAt": "2026-01-02T03:04:05Z"}},
        "goodput": {"buckets": {"productive": 12.5}},
        "lastEnd": {"attempt": 3, "cause": "Preemption"},
    }
    status = TrainingJobStatus.model_validate(raw)
    out = status.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert out == raw
