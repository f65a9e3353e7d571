"""What the chart renders: names of the contract, the least rights, restricted pods, sound certificates."""

from __future__ import annotations

import base64
import tomllib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from holdfast_contract import crd, keys
from tests.support.cluster.chart import CHART, Helm, Object, only, sets

HELM = Helm()

NAMESPACED_RULES = {
    ("holdfast.dev", "trainingjobs"): {"get", "list", "watch", "patch", "delete"},
    ("holdfast.dev", "trainingjobs/status"): {"update"},
    ("", "pods"): {"get", "list", "watch", "create", "delete"},
    ("events.k8s.io", "events"): {"create", "patch"},
}
CLUSTER_RULES = {
    ("", "nodes"): {"get", "list", "watch"},
    ("authentication.k8s.io", "tokenreviews"): {"create"},
}
LEASE_RULES = {
    ("coordination.k8s.io", "leases", "holdfast"): {"get", "update"},
    ("coordination.k8s.io", "leases"): {"create"},
}
OPERATOR_ENV = {
    f"{keys.ENV_PREFIX}OPERATOR_{name}"
    for name in (
        *("NAMESPACE", "POD_NAME", "POD_IP", "BIND_ADDRESS", "CONTROL_URL"),
        *("TLS_DIR", "LEASE_NAME", "WATCH_NAMESPACES", "LOG_LEVEL", "ORPHAN_SECONDS", "PROGRESS_SECONDS"),
    )
}
DEFAULT_KINDS = [
    "ClusterRole",
    "ClusterRole",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Deployment",
    "NetworkPolicy",
    "Pod",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "Service",
    "ServiceAccount",
]


@pytest.fixture(scope="module")
def rendered() -> list[Object]:
    return HELM.template()


def granted(role: Object) -> dict[tuple[str, ...], set[str]]:
    """A role's rules as one entry per resource (and resource name)."""
    return {
        (group, resource, *rule.get("resourceNames", [])): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def named(objects: list[Object], kind: str, name: str) -> list[Object]:
    return [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]


def operator_container(objects: list[Object]) -> dict[str, Any]:
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_default_values_render_these_kinds(rendered: list[Object]) -> None:
    assert sorted(o["kind"] for o in rendered) == DEFAULT_KINDS


@pytest.mark.parametrize(
    ("values", "more", "fewer"),
    [
        ({"crd.install": False}, [], ["CustomResourceDefinition"]),
        ({"tls.existingSecret": "mine"}, [], ["Secret"]),
        ({"tls.certManager.enabled": True}, ["Certificate", "Certificate", "Issuer", "Issuer"], ["Secret"]),
        (
            {"tls.certManager.enabled": True, "tls.certManager.issuerRef": {"name": "ours", "kind": "ClusterIssuer"}},
            ["Certificate"],
            ["Secret"],
        ),
        ({"serviceMonitor.enabled": True}, ["ServiceMonitor"], []),
        ({"podDisruptionBudget.enabled": False}, [], ["PodDisruptionBudget"]),
        ({"networkPolicy.enabled": False}, [], ["NetworkPolicy"]),
        ({"watchNamespaces": ["team-a"]}, ["Role", "RoleBinding"], []),
        ({"watchNamespaces": ["team-a", "team-b"]}, ["Role", "Role", "RoleBinding", "RoleBinding"], []),
        ({"rbac.aggregate": False}, [], ["ClusterRole", "ClusterRole"]),
        ({"serviceAccount.create": False, "serviceAccount.name": "ours"}, [], ["ServiceAccount"]),
    ],
    ids=lambda v: next(iter(v), "") if isinstance(v, dict) else "",
)
def test_a_value_adds_and_removes_kinds(values: dict[str, object], more: list[str], fewer: list[str]) -> None:
    kinds = sorted(o["kind"] for o in HELM.template(*sets(values)))
    expected = DEFAULT_KINDS + more
    for kind in fewer:
        expected.remove(kind)
    assert kinds == sorted(expected)


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_definition_is_the_generated_one_and_stays_when_helm_uninstalls(rendered: list[Object]) -> None:
    definition = only(rendered, "CustomResourceDefinition")
    assert definition == crd.custom_resource_definition()
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_rights_are_exactly_these(rendered: list[Object]) -> None:
    assert granted(only(rendered, "ClusterRole", "hf-system-holdfast")) == NAMESPACED_RULES | CLUSTER_RULES
    assert granted(only(rendered, "Role")) == LEASE_RULES


def test_with_named_namespaces_the_rights_over_jobs_and_pods_end_there() -> None:
    objects = HELM.template(*sets({"watchNamespaces": ["team-a", "team-b"]}))
    assert granted(only(objects, "ClusterRole", "hf-system-holdfast")) == CLUSTER_RULES
    roles = {o["metadata"]["namespace"]: o for o in named(objects, "Role", "hf-system-holdfast")}
    assert {name: granted(role) for name, role in roles.items()} == dict.fromkeys(
        ("team-a", "team-b"), NAMESPACED_RULES
    )
    bindings = {o["metadata"]["namespace"]: o for o in named(objects, "RoleBinding", "hf-system-holdfast")}
    account = {"kind": "ServiceAccount", "name": "holdfast", "namespace": "hf-system"}
    assert {name: binding["subjects"] for name, binding in bindings.items()} == {
        "team-a": [account],
        "team-b": [account],
    }
    (env,) = (e for e in operator_container(objects)["env"] if e["name"] == "HOLDFAST_OPERATOR_WATCH_NAMESPACES")
    assert env["value"] == "team-a,team-b"


def test_owner_reference_enforcement_adds_one_right() -> None:
    objects = HELM.template("--set=rbac.ownerReferencesPermissionEnforcement=true")
    extra = {("holdfast.dev", "trainingjobs/finalizers"): {"update"}}
    assert granted(only(objects, "ClusterRole", "hf-system-holdfast")) == NAMESPACED_RULES | CLUSTER_RULES | extra


def test_bindings_name_the_account_that_the_pods_use(rendered: list[Object]) -> None:
    account = only(rendered, "ServiceAccount")["metadata"]["name"]
    assert only(rendered, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        binding = only(rendered, kind)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "hf-system"}]
        assert only(rendered, binding["roleRef"]["kind"], binding["roleRef"]["name"])


def test_names_and_ports_are_those_of_the_contract(rendered: list[Object]) -> None:
    container = operator_container(rendered)
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"control": keys.CONTROL_PORT, "metrics": keys.METRICS_PORT, "health": keys.HEALTH_PORT}
    service = {p["name"]: (p["port"], p["targetPort"]) for p in only(rendered, "Service", "holdfast")["spec"]["ports"]}
    # Equal: a standby answers agents with the address of the leader's pod, and they use this port there.
    assert service["control"] == (keys.CONTROL_PORT, keys.CONTROL_PORT)
    allowed = {p["port"] for rule in only(rendered, "NetworkPolicy")["spec"]["ingress"] for p in rule["ports"]}
    assert allowed == set(ports.values())
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["HOLDFAST_OPERATOR_CONTROL_URL"] == f"https://holdfast.hf-system.svc:{keys.CONTROL_PORT}"
    assert env["HOLDFAST_OPERATOR_LEASE_NAME"] == "holdfast"
    assert set(env) == OPERATOR_ENV


def test_selectors_find_the_pods(rendered: list[Object]) -> None:
    labels = only(rendered, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        only(rendered, "Deployment")["spec"]["selector"]["matchLabels"],
        only(rendered, "Service", "holdfast")["spec"]["selector"],
        only(rendered, "Service", "holdfast-metrics")["spec"]["selector"],
        only(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(rendered, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    tester = only(rendered, "Pod")["metadata"]["labels"].items()
    assert not any(selector.items() <= tester for selector in selectors)


def test_a_budget_never_blocks_a_drain(rendered: list[Object]) -> None:
    spec = only(rendered, "PodDisruptionBudget")["spec"]
    assert (spec.get("minAvailable"), spec["maxUnavailable"]) == (None, 1)


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "holdfast/operator:0.1.0"),
        ({"image.tag": "edge"}, "holdfast/operator:edge"),
        ({"image.digest": f"sha256:{'0' * 64}"}, f"holdfast/operator@sha256:{'0' * 64}"),
    ],
)
def test_image_is_tag_or_digest(values: dict[str, object], image: str) -> None:
    assert operator_container(HELM.template(*sets(values)))["image"] == image


def test_two_releases_share_no_cluster_scoped_name() -> None:
    def names(namespace: str) -> set[tuple[str, str]]:
        objects = HELM.template("--set=crd.install=false", namespace=namespace)
        return {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"].startswith("Cluster")}

    assert names("one") & names("two") == set()


def certificate(secret: Object, key: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"][key]))


def test_helm_makes_a_long_lived_ca_and_a_short_leaf_for_the_service(rendered: list[Object]) -> None:
    secret = only(rendered, "Secret")
    ca, leaf = certificate(secret, "ca.crt"), certificate(secret, "tls.crt")
    leaf.verify_directly_issued_by(ca)
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "holdfast.hf-system.svc" in names.get_values_for_type(x509.DNSName)
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.SERVER_AUTH in usage
    now = datetime.now(tz=UTC)
    assert ca.not_valid_after_utc - now > timedelta(days=3600)
    assert timedelta(days=390) < leaf.not_valid_after_utc - now < timedelta(days=398)
    renew = datetime.fromtimestamp(int(secret["metadata"]["annotations"]["holdfast.dev/renew-after"]), tz=UTC)
    assert now + timedelta(days=260) < renew < leaf.not_valid_after_utc - timedelta(days=130)


def test_the_operator_never_sees_the_key_of_the_ca(rendered: list[Object]) -> None:
    volumes = only(rendered, "Deployment")["spec"]["template"]["spec"]["volumes"]
    (tls,) = (v["secret"] for v in volumes if "secret" in v)
    assert [item["path"] for item in tls["items"]] == ["tls.crt", "tls.key", "ca.crt"]


def test_certificates_of_cert_manager_are_for_the_service_and_end_in_the_mounted_secret() -> None:
    objects = HELM.template("--set=tls.certManager.enabled=true")
    leaf = only(objects, "Certificate", "holdfast")["spec"]
    assert "holdfast.hf-system.svc" in leaf["dnsNames"]
    volumes = only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [leaf["secretName"]] == [v["secret"]["secretName"] for v in volumes if "secret" in v]
    assert leaf["secretName"] != only(HELM.template(), "Secret")["metadata"]["name"], "which outlives a release"
    assert leaf["issuerRef"]["name"] == "holdfast"
    assert only(objects, "Issuer", "holdfast")["spec"]["ca"]["secretName"] == "holdfast-ca"
    assert only(objects, "Certificate", "holdfast-ca")["spec"]["isCA"] is True


def test_a_service_monitor_finds_the_metrics_service_only_and_keeps_the_labels_of_jobs() -> None:
    objects = HELM.template("--set=serviceMonitor.enabled=true")
    monitor = only(objects, "ServiceMonitor")["spec"]
    selected = monitor["selector"]["matchLabels"].items()
    found = [
        o["metadata"]["name"] for o in objects if o["kind"] == "Service" and selected <= o["metadata"]["labels"].items()
    ]
    assert found == ["holdfast-metrics"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["honorLabels"] is True, "namespace and name of a job's series are the job's"


def test_the_secret_with_the_ca_stays_when_helm_uninstalls(rendered: list[Object]) -> None:
    assert only(rendered, "Secret")["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
