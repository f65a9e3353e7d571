"""The chart against a real API server: accepted, restricted, and a CA that survives upgrades."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast_contract import keys
from localkube.cluster import Cluster
from tests.support.cluster.chart import Helm, Object, only, sets
from tests.support.cluster.kubectl import KubectlError, kubectl
from tests.support.cluster.manifests import training_job, with_value

RELEASE = "hf"
# Another release may own the definition in a shared cluster; the dry run below covers it.
NO_CRD = "--set=crd.install=false"


@pytest.fixture(scope="module")
def kubeconfig(cluster: Any) -> Path:
    return Path(cluster.kubeconfig)


@pytest.fixture(scope="module")
def helm(kubeconfig: Path) -> Helm:
    return Helm(kubeconfig)


@pytest.fixture
def release(helm: Helm, namespace: str) -> Iterator[str]:
    """A namespace in which the chart is installed."""
    helm.apply("install", RELEASE, namespace, NO_CRD)
    yield namespace
    helm.run("uninstall", RELEASE, "--namespace", namespace)


def secret_of(kubeconfig: Path, namespace: str) -> Object:
    found: Object = json.loads(
        kubectl(kubeconfig, "-n", namespace, "get", "secret", f"{RELEASE}-holdfast-tls", "-o", "json")
    )
    return found


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"replicas": 1, "logLevel": "debug", "priorityClassName": "system-cluster-critical"},
        {"tls.existingSecret": "mine", "networkPolicy.enabled": False},
        {
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"pool": "system"},
            "image.pullSecrets": [{"name": "registry"}],
            "podLabels": {"team": "ml"},
        },
        {"serviceAccount.annotations": {"a": "b"}, "podAnnotations": {"c": "d"}, "fullnameOverride": "operator"},
        {
            "podSecurityContext": {"runAsUser": 1000, "fsGroup": 1000, "supplementalGroups": [1]},
            "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        },
        {"spread": "required", "deploymentLabels": {"a": "b"}, "serviceAnnotations": {"c": "d"}},
    ],
    ids=["default", "one-replica", "own-secret", "placement", "names", "pod", "spread"],
)
def test_the_server_accepts_what_is_rendered(
    kubeconfig: Path, helm: Helm, namespace: str, values: dict[str, object]
) -> None:
    objects = helm.template(*sets(values), release=RELEASE, namespace=namespace)
    answer = kubectl(
        kubeconfig,
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"),
        text=yaml.safe_dump_all(objects),
    )
    assert len(answer.splitlines()) == len(objects)


def operator_pod(objects: list[Object], namespace: str) -> Object:
    """A pod like those of the Deployment."""
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": namespace}, "spec": spec}


def test_a_pod_stays_on_a_dead_node_for_no_longer_than_the_chart_says(
    kubeconfig: Path, helm: Helm, release: str
) -> None:
    """The API server adds 300 s for each of the two taints that a pod does not name."""
    pod = operator_pod(helm.template(release=RELEASE, namespace=release), release)
    made = kubectl(kubeconfig, "apply", "--dry-run=server", "-o", "json", "-f", "-", text=yaml.safe_dump(pod))
    tolerated = {t["key"]: t["tolerationSeconds"] for t in json.loads(made)["spec"]["tolerations"]}
    assert tolerated == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}


def test_pods_pass_the_restricted_standard(kubeconfig: Path, helm: Helm, release: str) -> None:
    kubectl(kubeconfig, "label", "namespace", release, "pod-security.kubernetes.io/enforce=restricted")
    objects = helm.template(release=RELEASE, namespace=release)
    kubectl(kubeconfig, "apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump(only(objects, "Pod")))
    pod = operator_pod(objects, release)
    kubectl(kubeconfig, "apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump(pod))
    loosened = with_value(pod, "spec.containers[0].securityContext.allowPrivilegeEscalation", True)
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        kubectl(kubeconfig, "apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump(loosened))


def test_an_upgrade_keeps_the_certificates(kubeconfig: Path, helm: Helm, release: str) -> None:
    before = secret_of(kubeconfig, release)
    helm.apply("upgrade", RELEASE, release, NO_CRD, "--set=replicas=1")
    after = secret_of(kubeconfig, release)
    assert after["data"] == before["data"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


def test_an_upgrade_late_in_the_life_of_the_leaf_renews_it_under_the_same_ca(
    kubeconfig: Path, helm: Helm, release: str
) -> None:
    before = secret_of(kubeconfig, release)["data"]
    kubectl(
        kubeconfig,
        "-n",
        release,
        "annotate",
        "--overwrite",
        "secret",
        f"{RELEASE}-holdfast-tls",
        "holdfast.dev/renew-after=1",
    )
    helm.apply("upgrade", RELEASE, release, NO_CRD, "--force-conflicts")
    after = secret_of(kubeconfig, release)
    assert [after["data"][k] == before[k] for k in ("ca.crt", "ca.key", "tls.crt", "tls.key")] == [
        True,
        True,
        False,
        False,
    ]
    assert int(after["metadata"]["annotations"]["holdfast.dev/renew-after"]) > 1


def test_the_ca_outlives_the_release_and_the_next_installation_finds_it(
    kubeconfig: Path, helm: Helm, release: str
) -> None:
    """Running pods have ca.crt in their environment."""
    before = secret_of(kubeconfig, release)["data"]
    done = helm.run("uninstall", RELEASE, "--namespace", release)
    assert done.returncode == 0, done.stderr
    assert secret_of(kubeconfig, release)["data"] == before
    helm.apply("install", RELEASE, release, NO_CRD)
    assert secret_of(kubeconfig, release)["data"] == before


def test_the_definition_comes_with_the_chart_is_upgraded_with_it_and_outlives_it() -> None:
    with Cluster() as own:
        helm, namespace = Helm(own.kubeconfig), "default"
        helm.apply("install", RELEASE, namespace)
        column = ".spec.versions[0].additionalPrinterColumns[0].name"
        assert kubectl(own.kubeconfig, "get", "crd", keys.CRD_NAME, f"-o=jsonpath={{{column}}}") == "State"
        older = '[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]'
        kubectl(
            own.kubeconfig, "patch", "crd", keys.CRD_NAME, "--field-manager=helm", "--type=json", f"--patch={older}"
        )
        helm.apply("upgrade", RELEASE, namespace, "--force-conflicts")
        assert kubectl(own.kubeconfig, "get", "crd", keys.CRD_NAME, f"-o=jsonpath={{{column}}}") == "State"
        kubectl(own.kubeconfig, "wait", "--for=condition=Established", "crd", keys.CRD_NAME, "--timeout=20s")
        kubectl(own.kubeconfig, "create", "-f", "-", text=yaml.safe_dump(training_job(namespace=namespace)))
        done = helm.run("uninstall", RELEASE, "--namespace", namespace)
        assert done.returncode == 0, done.stderr
        assert (
            kubectl(own.kubeconfig, "get", keys.PLURAL, "-o", "name").strip()
            == f"{keys.SINGULAR}.{keys.API_GROUP}/char-lm"
        )
