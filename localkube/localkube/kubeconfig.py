"""Writes and reads kubeconfig files."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localkube.certs import KeyPair, write_private
from localkube.errors import LocalkubeError


@dataclass(frozen=True)
class Endpoint:
    """Where the current context of a kubeconfig points."""

    server_url: str
    ca_pem: str


def write_kubeconfig(path: Path, server_url: str, ca_pem: bytes, identity: KeyPair) -> Path:
    """Write a kubeconfig (mode 0600) that carries its certificates in itself, so that it may be copied elsewhere."""
    name = "localkube"
    user = {
        "client-certificate-data": _encode(identity.certificate),
        "client-key-data": _encode(identity.key),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server_url, "certificate-authority-data": _encode(ca_pem)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def read_endpoint(path: Path) -> Endpoint:
    """The server and CA of a kubeconfig's current context. Raises LocalkubeError if it names none."""
    try:
        document = yaml.safe_load(path.read_text())
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        server = str(cluster["server"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
        raise LocalkubeError(f"{path} is no kubeconfig with a current context and its cluster: {error!r}") from error
    if "certificate-authority-data" in cluster:
        return Endpoint(server, base64.b64decode(cluster["certificate-authority-data"]).decode())
    if "certificate-authority" in cluster:
        return Endpoint(server, (path.parent / cluster["certificate-authority"]).read_text())
    return Endpoint(server, "")


def _named(document: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    return next(entry for entry in document[section] if entry["name"] == name)


def _encode(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
