"""The API server's address and our credentials: a kubeconfig if one is given, else the pod's ServiceAccount.

The ``kubernetes`` client reads both; kopf receives what it found.
"""

from __future__ import annotations

from pathlib import Path

import kopf
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME


class AccessError(ValueError):
    """There is no usable way to the API server. The message says what was tried."""


def load(kubeconfig: str | None) -> Configuration:
    """The configuration of a new connection.

    ``kubeconfig`` is a path. Without it, the pod's ServiceAccount is used, or the default kubeconfig outside a pod.

    Raises:
        AccessError: neither exists, or what exists cannot be read.
    """
    found = Configuration()
    try:
        if kubeconfig is None and Path(SERVICE_TOKEN_FILENAME).is_file():
            config.load_incluster_config(client_configuration=found)
        else:
            config.load_kube_config(config_file=kubeconfig, client_configuration=found)
    except (ConfigException, OSError) as error:
        tried = SERVICE_TOKEN_FILENAME if kubeconfig is None else kubeconfig
        raise AccessError(f"KUBECONFIG: found {tried!r}, allowed: a kubeconfig, or a pod's account ({error})") from None
    return found


def for_watch(access: Configuration) -> kopf.ConnectionInfo:
    """The same access for kopf, with the current token."""
    bearer = access.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    scheme, _, token = bearer.partition(" ")
    return kopf.ConnectionInfo(
        server=access.host,
        ca_path=access.ssl_ca_cert,
        insecure=not access.verify_ssl,
        scheme=(scheme.capitalize() if token else None),
        token=(token.strip() or None),
        certificate_path=access.cert_file,
        private_key_path=access.key_file,
    )
