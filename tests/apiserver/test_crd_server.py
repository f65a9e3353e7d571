"""A real API server takes the definition, refuses what is wrong with words that help, and explains every field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from holdfast_contract import crd, keys
from tests.support.cluster.bad_manifests import CHANGED, CREATED, Bad
from tests.support.cluster.crd_server import Jobs, refusal
from tests.support.cluster.kubectl import KubectlError, kubectl
from tests.support.cluster.manifests import training_job, with_value, without
from tests.support.polling import until

ROOT = Path(__file__).parents[2]
PUBLISHED_WITHIN_SECONDS = 30.0


def test_definition_is_established_and_structural(established: dict[str, Any]) -> None:
    conditions = {c["type"]: c["status"] for c in established["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert not established["spec"].get("preserveUnknownFields")


def test_the_valid_job_is_accepted_with_its_defaults(jobs: Jobs) -> None:
    spec = jobs.create(training_job())["spec"]
    assert spec["checkpoint"] == {
        "path": "/checkpoints",
        "every": {"steps": 100},
        "takeOver": False,
    }
    assert spec["preemption"] == {"defaultDeadlineSeconds": 25}
    assert spec["recovery"] == {
        "strategy": "InPlace",
        "maxFailures": 10,
        "windowSeconds": 86400,
        "noProgressLimit": 3,
    }
    assert spec["hang"] == {"stepSeconds": 600, "startSeconds": 1800}
    assert spec["suspend"] is False
    assert spec["template"] == training_job()["spec"]["template"], "the template is stored as it was written"


@pytest.mark.parametrize("bad", CREATED, ids=lambda b: b.id)
def test_a_wrong_job_is_refused_by_field_value_and_rule(jobs: Jobs, bad: Bad) -> None:
    with pytest.raises(client.ApiException) as error:
        jobs.create(bad.applied_to(training_job()), dry_run=True)
    message = refusal(error.value)
    assert [text for text in bad.server if text not in message] == [], message


@pytest.mark.parametrize("bad", CHANGED, ids=lambda b: b.id)
def test_a_wrong_change_is_refused_by_field_value_and_rule(jobs: Jobs, bad: Bad) -> None:
    stored = jobs.create(training_job())
    with pytest.raises(client.ApiException) as error:
        jobs.replace(bad.applied_to(stored), dry_run=True)
    message = refusal(error.value)
    assert [text for text in bad.server if text not in message] == [], message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spec.template.spec.containers[0].image", "other"),
        ("spec.template.spec.containers[0].resources.requests.cpu", "2"),
        ("spec.template.spec.volumes[0].hostPath.path", "/elsewhere"),
        ("spec.template.spec.nodeSelector", {"pool": "spot"}),
    ],
)
def test_fields_outside_the_schema_are_frozen_while_running_and_free_while_suspended(
    jobs: Jobs, field: str, value: Any
) -> None:
    stored = jobs.create(training_job())
    changed = with_value(stored, field, value)
    with pytest.raises(client.ApiException) as error:
        jobs.replace(changed, dry_run=True)
    assert "a change of template while spec.suspend is true" in refusal(error.value)
    suspended = jobs.replace(with_value(changed, "spec.suspend", True))
    assert suspended["spec"]["template"] == changed["spec"]["template"]
    jobs.replace(with_value(suspended, "spec.suspend", False))


@pytest.mark.parametrize("path", ["/checkpoints", "/checkpoints/", "/checkpoints/a/b", "/checkpoints/..a/.b/c.."])
def test_a_path_below_the_mount_is_accepted(jobs: Jobs, path: str) -> None:
    assert jobs.create(with_value(training_job(), "spec.checkpoint.path", path), dry_run=True)


@pytest.mark.parametrize("mount", ["/", "/checkpoints/", "/check"])
def test_mounts_are_compared_by_whole_segments(jobs: Jobs, mount: str) -> None:
    job = with_value(training_job(), "spec.template.spec.containers[0].volumeMounts[0].mountPath", mount)
    if mount == "/check":
        with pytest.raises(client.ApiException):
            jobs.create(job, dry_run=True)
    else:
        assert jobs.create(job, dry_run=True)


def test_another_interval_can_be_merged_over_the_default(jobs: Jobs) -> None:
    jobs.create(without(with_value(training_job(), "spec.suspend", True), "spec.checkpoint.every"))
    merged = jobs.merge("char-lm", {"spec": {"checkpoint": {"every": {"steps": 50}}}})
    assert merged["spec"]["checkpoint"]["every"] == {"steps": 50}


def test_another_choice_of_what_to_keep_can_be_merged(jobs: Jobs) -> None:
    jobs.create(with_value(training_job(), "spec.suspend", True))
    merged = jobs.merge("char-lm", {"spec": {"checkpoint": {"keep": {"all": True}}}})
    assert merged["spec"]["checkpoint"]["keep"] == {"all": True}


FULL = {
    "seconds": 600,
    "steps": 100,
    "adaptive": {"minSeconds": 30, "maxSeconds": 3600, "priorMeanSecondsBetweenFailures": 7200, "priorFailures": 2},
    "atSteps": list(range(1, 65)),
    "whenUnstable": {"minSeconds": 10, "baseSeconds": 60, "maxSeconds": 600, "metric": "norm", "tolerance": 4.5},
}


def test_the_largest_rules_are_taken_and_stored_as_written(jobs: Jobs) -> None:
    """The server refuses at run time what costs more than its budget, however well the definition was estimated."""
    leaves = [{name: value} for name, value in FULL.items()] + [{"atSteps": FULL["atSteps"]}] * 3
    kept = {"latest": 9, "best": 2, "metric": "loss", "mode": "max", "everySteps": 10, "steps": FULL["atSteps"]}
    checkpoint = {
        "path": "/checkpoints",
        "every": {"anyOf": [*leaves[:7], {"allOf": leaves}]},
        "keep": {"everySeconds": 60, "anyOf": [{"allOf": [kept] * 8}] * 8, "allOf": [kept] * 8},
        "healthy": {"finite": [f"metric-{n}" for n in range(16)]},
    }
    stored = jobs.create(with_value(training_job(), "spec.checkpoint", checkpoint))["spec"]["checkpoint"]
    whole = checkpoint["every"]["anyOf"][4]["whenUnstable"]
    assert stored["every"]["anyOf"][4]["whenUnstable"] == whole | {"window": 32}
    assert stored["every"]["anyOf"][7]["allOf"][2:4] == leaves[2:4]
    assert stored["keep"] == checkpoint["keep"]
    assert stored["healthy"] == checkpoint["healthy"]


def test_columns_show_what_a_person_wants(jobs: Jobs, kubeconfig: Path) -> None:
    stored = jobs.create(training_job())
    stored["status"] = {
        "state": "Training",
        "attempt": 4,
        "activeAttempt": 3,
        "restartsTotal": 2,
        "restarts": {"Preemption": 2},
        "workers": {"desired": 2, "ready": 2, "training": 2},
        "progress": {"step": 1234, "totalSteps": 5000},
        "checkpoint": {"run": "lm", "newest": {"attempt": 2, "step": 1200}},
        "lastEnd": {"attempt": 2, "cause": "Preemption"},
    }
    jobs.replace_status(stored)
    listing = kubectl(kubeconfig, "-n", jobs.namespace, "get", keys.SHORT_NAME).splitlines()
    assert listing[0].split() == ["NAME", "STATE", "STEP", "ATTEMPT", "CHECKPOINT", "RESTARTS", "AGE"]
    assert listing[1].split()[:-1] == ["char-lm", "Training", "1234", "3", "1200", "2"]
    wide = kubectl(kubeconfig, "-n", jobs.namespace, "get", keys.SHORT_NAME, "-o", "wide").splitlines()
    assert wide[0].split()[-4:] == ["OF", "WORKERS", "LAST-END", "RUN"]
    assert wide[1].split()[-4:] == ["5000", "2", "Preemption", "lm"]


def test_status_is_written_apart_from_the_spec(jobs: Jobs) -> None:
    stored = jobs.create(with_value(training_job(), "status", {"attempt": 9}))
    assert "status" not in stored, "a user cannot set status"
    stored["status"] = {"attempt": 1}
    stored["spec"]["suspend"] = True
    answer = jobs.replace_status(stored)
    assert (answer["status"]["attempt"], answer["spec"]["suspend"]) == (1, False)
    assert answer["metadata"]["generation"] == 1, "a status write is no new generation"


def test_explain_describes_every_field(established: dict[str, Any], kubeconfig: Path) -> None:
    assert established
    job = published_schema(kubeconfig)
    assert list(_undescribed(job["properties"]["spec"], "spec")) == []
    assert list(_undescribed(job["properties"]["status"], "status")) == []
    rules = ("every.anyOf.allOf.whenUnstable", "every.adaptive", "keep.anyOf.allOf", "healthy")
    for path in (
        "spec",
        *(f"spec.checkpoint.{rule}" for rule in rules),
        "spec.template.spec.containers",
        "status.checkpoint",
    ):
        text = kubectl(kubeconfig, "explain", f"{keys.SINGULAR}.{path}")
        assert "DESCRIPTION:" in text
        assert "<no description>" not in text, text


def published_schema(kubeconfig: Path) -> dict[str, Any]:
    """What explain reads. The server publishes it some time after the definition is Established."""

    def published() -> dict[str, Any] | None:
        with suppress(KubectlError):
            document = kubectl(kubeconfig, "get", "--raw", f"/openapi/v3/apis/{keys.API_VERSION}")
            schemas = json.loads(document)["components"]["schemas"]
            return next((schema for name, schema in schemas.items() if name.endswith(f".{keys.KIND}")), None)
        return None

    return until(published, PUBLISHED_WITHIN_SECONDS, "the schema of a definition that is Established")


def _undescribed(schema: dict[str, Any], path: str) -> Iterator[str]:
    if not schema.get("description") and not path.endswith("[]"):
        yield path
    for name, child in schema.get("properties", {}).items():
        yield from _undescribed(child, f"{path}.{name}")
    if "items" in schema:
        yield from _undescribed(schema["items"], f"{path}[]")


def test_the_chart_carries_the_same_definition(established: dict[str, Any]) -> None:
    copy = yaml.safe_load((ROOT / crd.TARGETS[1]).read_text())
    assert copy["spec"]["versions"][0]["schema"] == established["spec"]["versions"][0]["schema"]
