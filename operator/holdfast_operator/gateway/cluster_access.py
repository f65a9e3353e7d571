"""Where the API server is and who we are there: the pod's own ServiceAccount, else a kubeconfig."""

from __future__ import annotations

from pathlib import Path

import kopf
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME

Access = Configuration


class AccessError(ValueError):
    """No usable way to the API server; says what was tried."""


def load(kubeconfig: str | None) -> Configuration:
    """The configuration of a new connection. ``kubeconfig`` (a path) wins; without it the pod's own account.

    Raises:
        AccessError: neither is there, or what is there cannot be read.
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
    """The same access in kopf's terms, with the token as it is now."""
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
