"""Writes kubeconfig files, which the kubernetes client reads and cannot write."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from localkube.certs import KeyPair, write_private


def write_kubeconfig(path: Path, server_url: str, ca_pem: bytes, identity: KeyPair) -> Path:
    """Write a kubeconfig (mode 0600) that may be copied elsewhere, for it names no other file. Returns `path`.

    `server_url` is the API server's address, `ca_pem` the CA that signed its certificate, and `identity` the client
    certificate of the user.
    """
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


def _encode(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
