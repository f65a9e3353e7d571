"""The pod that is made from a user's template: everything of theirs, the agent in front, nothing that asks for more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast_contract import keys
from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_operator.decide import children
from holdfast_operator.decide.actions import CreatePod
from holdfast_operator.decide.facts import JobFact
from tests.support.cluster.manifests import training_job

CONTROL = children.ControlSettings("https://holdfast.hf.svc:8443", "PEM with $(DOLLAR)", orphan_seconds=33)


def job(pod_spec: dict[str, Any] | None = None, container: dict[str, Any] | None = None) -> JobFact:
    """A job whose pod spec and trainer container have these fields besides the usual ones."""
    raw = training_job("lm")["spec"]
    raw["template"]["spec"] |= pod_spec or {}
    raw["template"]["spec"]["containers"][0] |= container or {}
    made = TrainingJobSpec.model_validate(raw)
    return JobFact("ns", "lm", "uid-1", 1, datetime(2026, 1, 1, tzinfo=UTC), made, TrainingJobStatus())


def trainer(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in manifest["spec"]["containers"] if c["name"] == keys.TRAINER_CONTAINER)
    return found


def test_what_the_user_wrote_stays() -> None:
    theirs = job(
        {"priorityClassName": "high", "serviceAccountName": "me", "terminationGracePeriodSeconds": 90},
        {"args": ["--steps", "5"], "resources": {"limits": {"cpu": "1"}}},
    )
    pod = children.pod(theirs, CreatePod(1, 4), CONTROL)
    assert pod["metadata"]["name"] == "lm-1-4"
    assert pod["metadata"]["labels"]["team"] == "language"
    assert (pod["spec"]["priorityClassName"], pod["spec"]["serviceAccountName"]) == ("high", "me")
    made = trainer(pod)
    assert made["command"] == ["python", "-m", "holdfast_agent", "--", "python", "-m", "train"]
    assert made["args"] == ["--steps", "5"]
    assert made["resources"] == {"limits": {"cpu": "1"}}
    assert {"name": keys.ENV_GRACE_SECONDS, "value": "90"} in made["env"]
    assert {"name": keys.ENV_ORPHAN_SECONDS, "value": "33"} in made["env"]
    assert "affinity" not in pod["spec"]


def test_no_value_is_taken_for_a_reference_to_a_variable() -> None:
    env = {e["name"]: e.get("value") for e in trainer(children.pod(job(), CreatePod(0, 0), CONTROL))["env"]}
    assert env[keys.ENV_CONTROL_CA] == "PEM with $$(DOLLAR)"


def test_other_containers_are_left_alone() -> None:
    side = {"name": "side", "image": "s", "command": ["sleep", "1"]}
    theirs = job({"containers": [side, training_job("lm")["spec"]["template"]["spec"]["containers"][0]]})
    pod = children.pod(theirs, CreatePod(0, 0), CONTROL)
    assert pod["spec"]["containers"][0] == side
    assert keys.ENV_CONTROL_CA not in str(pod["spec"]["containers"][0])


def test_the_template_itself_is_never_changed() -> None:
    theirs = job()
    before = theirs.spec.template.to_manifest()
    children.pod(theirs, CreatePod(0, 1, ("n1",)), CONTROL)
    assert theirs.spec.template.to_manifest() == before
    assert children.pod(theirs, CreatePod(0, 1), CONTROL) == children.pod(theirs, CreatePod(0, 1), CONTROL)


def test_avoided_nodes_join_every_alternative_of_the_user() -> None:
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    other = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, other]}}
    theirs = job({"affinity": {"nodeAffinity": wanted, "podAffinity": {}}})
    pod = children.pod(theirs, CreatePod(0, 1, ("n1", "n2")), CONTROL)
    affinity = pod["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for made in terms:
        kept_off = [f["values"] for f in made["matchFields"] if f["operator"] == "NotIn"]
        assert kept_off == [["n1"], ["n2"]]
    assert terms[0]["matchExpressions"] == term["matchExpressions"]
    assert other["matchFields"][0] in terms[1]["matchFields"]
    assert affinity["podAffinity"] == {}
    assert children.avoided_nodes(pod["spec"]) == {"n1", "n2"}


def test_nodes_that_the_user_avoids_are_not_taken_for_the_operators() -> None:
    mine = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [mine]}}
    theirs = job({"affinity": {"nodeAffinity": wanted}})
    template = children.avoided_nodes(theirs.spec.template.to_manifest()["spec"])
    assert template == {"n9"}
    made = children.pod(theirs, CreatePod(0, 1, ("n1",)), CONTROL)
    assert children.avoided_nodes(made["spec"]) - template == {"n1"}
    assert children.avoided_nodes({}) == children.avoided_nodes({"affinity": None}) == frozenset()


def test_the_pod_asks_for_no_permission() -> None:
    pod = children.pod(job(), CreatePod(0, 0), CONTROL)
    assert pod["spec"]["automountServiceAccountToken"] is False
    sources = [v["projected"]["sources"] for v in pod["spec"]["volumes"] if "projected" in v]
    tokens = [s["serviceAccountToken"]["audience"] for group in sources for s in group]
    assert tokens == [keys.TOKEN_AUDIENCE]
    kept = children.pod(job({"automountServiceAccountToken": True}), CreatePod(0, 0), CONTROL)
    assert kept["spec"]["automountServiceAccountToken"] is True, "a user's own wish stands"
