"""The operator's rights under the chart's ServiceAccount: granted = used, by the API server's own audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast_contract import keys
from tests.support.cluster.world import RELEASE, SYSTEM, World

ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
Right = tuple[str, str, str]
"""Verb, API group, resource (with its subresource)."""

NEEDS: Final = {"test_bad_input.py", "test_notices.py", "test_operator_loss.py", "test_lifecycle.py"}
"""Whatever of these is not run, its rights are not used either."""

EVERYBODY: Final = {"/version", "/api", "/apis", "/openapi", "/healthz", "/livez", "/readyz"}
"""Discovery: every authenticated caller may ask this (system:discovery); the chart grants nothing for it."""

UNUSED_FOR_A_REASON: Final[dict[Right, str]] = {}
"""Rights that are granted and that no test here uses, each with the reason why it is granted all the same."""


def audited(path: Path) -> Iterator[dict[str, Any]]:
    """The operator's requests."""
    with path.open() as lines:
        for line in lines:
            if ACCOUNT in line and (entry := json.loads(line))["user"]["username"] == ACCOUNT:
                yield entry


def right_of(entry: dict[str, Any]) -> Right:
    about = entry["objectRef"]
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    return entry["verb"], about.get("apiGroup", ""), resource


def is_allowed(entry: dict[str, Any]) -> bool:
    """Whether the operator may ask this. What admission refuses afterwards (a quota) is another matter, also a 403."""
    decision: str = entry.get("annotations", {}).get("authorization.k8s.io/decision", "")
    return decision == "allow" and entry.get("responseStatus", {}).get("code") != 401


def granted(world: World) -> set[Right]:
    """All rights of the roles that are bound to the operator's account."""
    found: set[Right] = set()
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in json.loads(world.kubectl("get", kind, "-A", "-o", "json"))["items"]:
            subjects = [(s["kind"], s["name"], s.get("namespace")) for s in binding.get("subjects") or []]
            if ("ServiceAccount", RELEASE, SYSTEM) not in subjects:
                continue
            role = binding["roleRef"]
            space = ["-n", binding["metadata"]["namespace"]] if role["kind"] == "Role" else []
            rules = json.loads(world.kubectl("get", role["kind"], role["name"], *space, "-o", "json"))["rules"]
            found |= {
                (v, g, r) for rule in rules for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]
            }
    return found


@pytest.fixture(scope="module")
def requests(world: World) -> list[dict[str, Any]]:
    return list(audited(world.cluster.audit_log))


def test_nothing_was_forbidden(requests: list[dict[str, Any]]) -> None:
    assert requests, "the operator asked nothing at all"
    refused = {(e["verb"], e["requestURI"]) for e in requests if not is_allowed(e)}
    assert refused == set()


def test_what_is_used_is_granted_by_the_chart_alone(world: World, requests: list[dict[str, Any]]) -> None:
    used = {right_of(e) for e in requests if "objectRef" in e}
    assert used <= granted(world)
    elsewhere = {"/" + e["requestURI"].split("?")[0].strip("/").split("/")[0] for e in requests if "objectRef" not in e}
    assert elsewhere <= EVERYBODY


def test_what_is_granted_is_used(world: World, requests: list[dict[str, Any]], request: pytest.FixtureRequest) -> None:
    missing = NEEDS - {item.path.name for item in request.session.items}
    if missing:
        pytest.skip(f"judged over all end-to-end tests; not run here: {', '.join(sorted(missing))}")
    used = {right_of(e) for e in requests if "objectRef" in e}
    assert granted(world) - used == set(UNUSED_FOR_A_REASON)


def test_secrets_and_storage_are_out_of_reach(world: World) -> None:
    """The rights above, asked the other way round; none of these may ever be granted."""
    forbidden = (["get", "secrets"], ["create", "pods", "--subresource=exec"], ["get", "configmaps"], ["patch", "pods"])
    for question in forbidden:
        done = world.cluster.kubectl("auth", "can-i", *question, "-A", f"--as={ACCOUNT}", check=False)
        assert done.stdout.strip() == "no", question
    assert not {right for right in granted(world) if "*" in right}
    assert {group for _, group, _ in granted(world)} <= {
        "", keys.API_GROUP, "authentication.k8s.io", "coordination.k8s.io", "events.k8s.io",
    }  # fmt: skip
