"""A chart is installed and ready, or the error says what Helm, the pods and their logs say."""

import json
from pathlib import Path

import pytest
import yaml

from localkube.cluster import Cluster
from localkube.errors import HelmError
from localkube.helm_install import Release, install
from localkube.nodes import NodeOptions
from localkube.paths import CACHE_VARIABLE, cache_root

READY_SECONDS = 30.0
SHORT_SECONDS = 4.0


@pytest.fixture(scope="module", autouse=True)
def node(own: Cluster) -> None:
    """Starts a broken container again at once."""
    own.add_node("only", NodeOptions(arguments=["--backoff-seconds", "0.2"]))


def chart(folder: Path, script: str, image: str = "localkube/host") -> Path:
    """A chart of one Deployment that runs a shell script, ready if that lives for a second."""
    labels = {"app.kubernetes.io/instance": "{{ .Release.Name }}"}
    probe = {"exec": {"command": ["true"]}, "initialDelaySeconds": 1, "periodSeconds": 1}
    container = {"name": "main", "image": image, "command": ["sh", "-c", script], "readinessProbe": probe}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "{{ .Release.Name }}"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            },
        },
    }
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "tiny", "version": "0.1.0"}))
    (folder / "templates" / "deployment.yaml").write_text(yaml.safe_dump(deployment))
    return folder


def test_an_installed_chart_is_ready(own: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache_root()))  # where Helm was built
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    said: list[str] = []
    release = Release("good", chart(tmp_path / "tiny", "sleep 1000"), "good", options=["--set-json=a=1"])
    install(own, release, deadline_seconds=READY_SECONDS, progress=said.append)
    status = json.loads(own.kubectl("get", "deployment", "good", "-n", "good", "-o", "json").stdout)["status"]
    assert status["readyReplicas"] == 1
    assert said == ["helm install good tiny"]
    assert not (tmp_path / "home" / ".kube").exists(), "what was learnt about a cluster of minutes"


def test_a_release_that_does_not_become_ready_says_why(own: Cluster, tmp_path: Path) -> None:
    crashes = Release("bad", chart(tmp_path / "tiny", "echo words of the program; exit 3"), "bad")
    with pytest.raises(HelmError) as failed:
        install(own, crashes, deadline_seconds=SHORT_SECONDS)
    text = str(failed.value)
    assert text.startswith("helm install bad failed: ")
    assert "words of the program" in text, text
    assert "Exit Code:" in text, text
    assert "Scheduled" in text, text


def test_a_wrong_image_and_a_wrong_chart_are_named(own: Cluster, tmp_path: Path) -> None:
    typo = Release("typo", chart(tmp_path / "tiny", "true", image="no/such"), "typo")
    with pytest.raises(HelmError, match="no environment of that name"):
        install(own, typo, deadline_seconds=SHORT_SECONDS)
    with pytest.raises(HelmError, match=r"helm install gone failed: .*absent"):
        install(own, Release("gone", tmp_path / "absent", "gone"), deadline_seconds=SHORT_SECONDS)


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_deadline_must_be_in_the_future(own: Cluster, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"deadline_seconds is {seconds}, must be more than 0"):
        install(own, Release("late", tmp_path, "late"), deadline_seconds=seconds)
