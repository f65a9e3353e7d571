"""TrainingJobs on a real API server: the definition installed, objects written as kubectl writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config

from holdfast_contract import crd, keys
from tests.support.cluster.kubectl import KubectlError, kubectl
from tests.support.cluster.manifests import Manifest
from tests.support.polling import until

DEFINITION: Final = Path(__file__).parents[3] / crd.TARGETS[0]
ESTABLISHED_WITHIN_SECONDS: Final = 15.0


def install_definition(kubeconfig: Path) -> dict[str, Any]:
    """Apply the committed definition; the one that the server holds, once it is Established and served."""
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", str(DEFINITION))
    return until(
        lambda: found if _established(found := _held(kubeconfig)) and _served(kubeconfig) else {},
        ESTABLISHED_WITHIN_SECONDS,
        "Established and served",
        seen=lambda: _held(kubeconfig).get("status"),
    )


def _held(kubeconfig: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl(kubeconfig, "get", "crd", keys.CRD_NAME, "-o", "json"))
    return found


def _established(definition: dict[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []  # null for a moment
    return "Established" in {c["type"] for c in conditions if c["status"] == "True"}


def _served(kubeconfig: Path) -> bool:
    """Established comes a moment before the first request is answered."""
    try:
        kubectl(kubeconfig, "get", "--raw", f"/apis/{keys.API_VERSION}/{keys.PLURAL}?limit=1")
    except KubectlError:
        return False
    return True


@contextmanager
def connect(kubeconfig: Path, namespace: str) -> Iterator[Jobs]:
    """The jobs of a namespace, over a connection of their own."""
    with config.new_client_from_config(str(kubeconfig)) as connection:
        yield Jobs(client.CustomObjectsApi(connection), namespace)


def refusal(error: client.ApiException) -> str:
    """What the server said; it must be a refusal of the object, nothing else."""
    assert error.status in {400, 422}, error
    message: str = json.loads(error.body)["message"]
    return message


@dataclass(frozen=True)
class Jobs:
    """TrainingJobs of one namespace, with the strict field validation that kubectl asks for."""

    api: client.CustomObjectsApi
    namespace: str

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        return self._answer(self.api.create_namespaced_custom_object, manifest, dry_run=dry_run)

    def replace(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        name = manifest["metadata"]["name"]
        return self._answer(self.api.replace_namespaced_custom_object, name, manifest, dry_run=dry_run)

    def merge(self, name: str, patch: Manifest) -> Manifest:
        return self._answer(self.api.patch_namespaced_custom_object, name, patch)

    def replace_status(self, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        return self._answer(self.api.replace_namespaced_custom_object_status, name, manifest)

    def _answer(self, call: Any, *arguments: Any, dry_run: bool = False) -> Manifest:
        options = {"field_validation": "Strict"} | ({"dry_run": "All"} if dry_run else {})
        answer: Manifest = call(keys.API_GROUP, keys.VERSION, self.namespace, keys.PLURAL, *arguments, **options)
        return answer
