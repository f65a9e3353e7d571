"""Values: which are refused and in which words, and what the others change in the operator's pods."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.cluster.chart import CHART, Helm, Object, only, sets

HELM = Helm()
SELECTOR = {
    "app.kubernetes.io/name": "holdfast",
    "app.kubernetes.io/instance": "holdfast",
    "app.kubernetes.io/component": "operator",
}


CONSTRAINT = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}


def pod_of(*options: str) -> dict[str, Any]:
    """The operator's pod as the Deployment makes it: metadata and spec."""
    template: dict[str, Any] = only(HELM.template(*options), "Deployment")["spec"]["template"]
    return template


def operator_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicas": 3}, "'/replicas': maximum"),
        ({"replicas": 0}, "'/replicas': minimum: got 0, want 1"),
        ({"replicas": "1"}, "'/replicas': got string, want integer"),
        ({"replicaCount": 1}, "additional properties 'replicaCount' not allowed"),
        ({"image.name": "x"}, "'/image': additional properties 'name' not allowed"),
        ({"image.digest": "latest"}, "'/image/digest': 'latest' does not match"),
        ({"logLevel": "loud"}, "'/logLevel': value must be one of"),
        ({"orphanSeconds": 9}, "'/orphanSeconds': minimum: got 9, want 10"),
        ({"watchNamespaces": ["Team_A"]}, "'/watchNamespaces/0': 'Team_A' does not match"),
        ({"watchNamespaces": ["a", "a"]}, "'/watchNamespaces': items at 0 and 1 are equal"),
        ({"tls.leafDays": 0}, "'/tls/leafDays': minimum"),
        ({"tls.certManager.leafDuration": "a while"}, "'/tls/certManager/leafDuration'"),
        ({"networkPolicy.apiServerPorts": [0]}, "'/networkPolicy/apiServerPorts/0': minimum"),
        ({"resources.requests.memory": "banana"}, "'/resources/requests/memory': 'banana' does not match"),
        ({"resources.limits.cpu": -1}, "'/resources/limits/cpu': minimum"),
        ({"resources.limits.ram": "1Gi"}, "'/resources/limits': additional properties 'ram' not allowed"),
        ({"podSecurityContext.user": 1}, "'/podSecurityContext': additional properties 'user' not allowed"),
        ({"tolerations": [{"name": "x"}]}, "'/tolerations/0': additional properties 'name' not allowed"),
        ({"affinity.nodes": {}}, "'/affinity': additional properties 'nodes' not allowed"),
        ({"networkPolicy.controlFrom": [{}]}, "'/networkPolicy/controlFrom/0': minProperties"),
        ({"spread": "never"}, "'/spread': value must be one of"),
        ({"tls.existingSecret": "mine", "tls.certManager.enabled": True}, '`tls.existingSecret`: found "mine" beside'),
        ({"tls.certManager.issuerRef": {"name": "ours"}}, "`tls.certManager.issuerRef`: found an issuer while"),
        (
            {"tls.certManager.enabled": True, "tls.certManager.issuerRef": {"kind": "ClusterIssuer"}},
            "`tls.certManager.issuerRef.name` is required but not set",
        ),
        ({"tls.caDays": 30}, "`tls.leafDays`: found 397, allowed: at most `tls.caDays` (30)"),
        (
            {"spread": "required", "topologySpreadConstraints": [CONSTRAINT]},
            '`spread`: found "required" beside `topologySpreadConstraints`',
        ),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "`podLabels`: found app.kubernetes.io/name, allowed"),
        ({"extraEnv": [{"name": "HOLDFAST_OPERATOR_POD_IP"}]}, "`extraEnv`: found HOLDFAST_OPERATOR_POD_IP, allowed"),
        ({"extraVolumes": [{"name": "tls"}]}, "`extraVolumes`: found the name tls, allowed"),
        (
            {"extraVolumeMounts": [{"name": "x", "mountPath": "/tmp/"}]},
            "`extraVolumeMounts`: found the path /tmp/, allowed",
        ),
        ({"serviceAccount.create": False}, "`serviceAccount.name` is required but not set"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(RuntimeError) as refusal:
        HELM.template(*sets(values))
    assert says in str(refusal.value)


def test_every_value_is_in_the_schema_and_described() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(known: dict[str, Any], given: dict[str, Any], path: str) -> list[str]:
        faults = [
            f"{path}.{name}" for name in given if "description" not in known[name] and "properties" not in known[name]
        ]
        for name, value in given.items():
            if isinstance(value, dict) and "properties" in known[name]:
                assert known[name]["additionalProperties"] is False, f"{path}.{name}"
                faults += compare(known[name]["properties"], value, f"{path}.{name}")
        return faults

    assert compare(schema["properties"], values, "") == []


def test_an_image_is_required() -> None:
    with pytest.raises(
        RuntimeError, match=r"`image\.repository` is required but not set: the repository with the image"
    ):
        HELM.template("--set=image.repository=")


def test_every_object_of_the_schema_is_closed_or_free_by_intent() -> None:
    """Only what Kubernetes itself defines, and what a parent chart passes, may have keys that the schema does not know."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())

    def open_objects(node: dict[str, Any], path: str) -> list[str]:
        found = [] if node.get("type") != "object" or "additionalProperties" in node else [path]
        for name, child in node.get("properties", {}).items():
            found += open_objects(child, f"{path}.{name}")
        return found + (open_objects(node["items"], f"{path}[]") if "items" in node else [])

    kubernetes = ["podSelector", "namespaceSelector", "labelSelector", "valueFrom", "Affinity", "podAntiAffinity"]
    free = [".global", ".extraVolumes[]"]
    found = open_objects(schema, "")
    assert [p for p in found if p not in free and not p.endswith(tuple(kubernetes))] == []


def test_two_replicas_prefer_two_nodes_and_leave_a_dead_one_soon() -> None:
    deployment = only(HELM.template(), "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    (spread,) = pod["topologySpreadConstraints"]
    assert spread == {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": SELECTOR},
        "matchLabelKeys": ["pod-template-hash"],
    }
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert {(t["key"], t["effect"], t["tolerationSeconds"]) for t in pod["tolerations"]} == {
        ("node.kubernetes.io/not-ready", "NoExecute", 15),
        ("node.kubernetes.io/unreachable", "NoExecute", 15),
    }


def test_placement_by_values() -> None:
    toleration = {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}
    pod = pod_of(*sets({"tolerations": [toleration], "nodeFailureSeconds": 60, "spread": "required"}))["spec"]
    assert [t.get("tolerationSeconds") for t in pod["tolerations"]] == [60, 60, None]
    assert pod["tolerations"][-1] == toleration
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["whenUnsatisfiable"], spread["nodeTaintsPolicy"]) == ("DoNotSchedule", "Ignore")
    zones = [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    assert pod_of(*sets({"topologySpreadConstraints": zones}))["spec"]["topologySpreadConstraints"] == zones


def test_no_user_is_forced_and_the_certificates_are_readable() -> None:
    pod = pod_of()["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert operator_of({"spec": pod})["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert tls_mode(pod) == 0o444, "without fsGroup, the files belong to root"


def test_security_contexts_by_values() -> None:
    values = {"podSecurityContext": {"runAsUser": 1000, "fsGroup": 1000}, "securityContext.privileged": False}
    pod = pod_of(*sets(values))["spec"]
    context = pod["securityContext"]
    assert (context["runAsUser"], context["fsGroup"], context["runAsNonRoot"]) == (1000, 1000, True)
    assert operator_of({"spec": pod})["securityContext"]["privileged"] is False
    assert tls_mode(pod) == 0o440


def tls_mode(pod: dict[str, Any]) -> int:
    (mode,) = (v["secret"]["defaultMode"] for v in pod["volumes"] if v["name"] == "tls")
    return int(mode)


def test_more_environment_and_volumes() -> None:
    values: dict[str, object] = {
        "extraEnv": [{"name": "SSL_CERT_DIR", "value": "/certificates"}],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "ours"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates", "readOnly": True}],
    }
    pod = pod_of(*sets(values))
    container = operator_of(pod)
    assert container["env"][-1] == {"name": "SSL_CERT_DIR", "value": "/certificates"}
    assert container["volumeMounts"][-1] == {"name": "certificates", "mountPath": "/certificates", "readOnly": True}
    assert pod["spec"]["volumes"][-1] == {"name": "certificates", "configMap": {"name": "ours"}}


def test_labels_and_annotations() -> None:
    fields = [f"{what}{kind}" for what in ("deployment", "pod", "service") for kind in ("Labels", "Annotations")]
    objects = HELM.template(*sets({field: {"example.com/from": field} for field in fields}))
    deployment = only(objects, "Deployment")
    marked = {
        "deployment": [deployment],
        "pod": [deployment["spec"]["template"]],
        "service": [o for o in objects if o["kind"] == "Service"],
    }
    for what, targets in marked.items():
        for target in targets:
            meta = target["metadata"]
            assert meta["labels"]["example.com/from"] == f"{what}Labels"
            assert meta["annotations"] == {"example.com/from": f"{what}Annotations"}


def test_the_metrics_have_a_service_without_any_monitor() -> None:
    service = only(HELM.template(), "Service", "holdfast-metrics")["spec"]
    assert [p["name"] for p in service["ports"]] == ["metrics"]


def test_helm_test_asks_the_service_and_trusts_the_ca_that_agents_have() -> None:
    objects: list[Object] = HELM.template()
    pod = only(objects, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    operator, tester = operator_of(only(objects, "Deployment")["spec"]["template"]), operator_of(pod)
    assert tester["image"] == operator["image"]
    assert tester["securityContext"] == operator["securityContext"]
    compile(tester["command"][-1], "command", "exec")
    (items,) = (v["secret"]["items"] for v in pod["spec"]["volumes"])
    assert [item["key"] for item in items] == ["ca.crt"]


def test_the_page_of_an_index_names_the_resource_of_the_chart() -> None:
    notes = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    definition = only(HELM.template(), "CustomResourceDefinition")
    (shown,) = yaml.safe_load(notes["artifacthub.io/crds"])
    assert shown["name"] == definition["metadata"]["name"]
    assert shown["kind"] == definition["spec"]["names"]["kind"]
    assert shown["version"] == definition["spec"]["versions"][0]["name"]
