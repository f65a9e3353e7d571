"""Any cluster that can be reached with a kubeconfig: one of localkube's or one that the user already has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from localkube.binaries import control_plane
from localkube.errors import LocalkubeError
from localkube.kubeconfig import read_endpoint

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

DISCOVERY_CACHE_VARIABLE = "KUBECACHEDIR"
"""Names the folder of `discovery_cache` to kubectl and Helm."""
KUBECTL_SECONDS = 60.0
_DEFAULT_PORTS = {"https": 443, "http": 80}


class ClusterAccess:
    """A cluster, by its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kubeconfig

    @property
    def server_url(self) -> str:
        """Where the API server answers."""
        return read_endpoint(self.kubeconfig).server_url

    @property
    def server_port(self) -> int:
        """The API server's port. Raises LocalkubeError if its address names none that can be."""
        try:
            parts = urlsplit(self.server_url)
            return parts.port or _DEFAULT_PORTS[parts.scheme]
        except (ValueError, KeyError) as error:
            raise LocalkubeError(f"{self.kubeconfig}: {self.server_url!r} is no address of an API server") from error

    @property
    def ca_pem(self) -> str:
        """The CA that signed the API server's certificate; empty if the kubeconfig names none."""
        return read_endpoint(self.kubeconfig).ca_pem

    @property
    def discovery_cache(self) -> Path | None:
        """Where kubectl and Helm keep what they learn about the server; None: where they do by default, in the home."""
        return None

    def api_client(self) -> ApiClient:
        """The official library's client as the administrator."""
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_kube_config(
            str(self.kubeconfig), client_configuration=configuration, temp_file_path=self._client_files()
        )
        return client.ApiClient(configuration)

    def _client_files(self) -> str | None:
        """Where that library puts keys, which it removes only when its process ends in order; None: its own choice."""
        return None

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator. Raises CalledProcessError if it fails and `check` is set."""
        return subprocess.run(
            [*self.kubectl_command(), *arguments],
            input=stdin,
            check=check,
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
        )

    def kubectl_command(self) -> list[str]:
        """The beginning of a kubectl command line as the administrator, for what runs longer than a call."""
        cache = self.discovery_cache
        return [
            str(self._kubectl_path()),
            f"--kubeconfig={self.kubeconfig}",
            *([f"--cache-dir={cache}"] if cache else []),
        ]

    def _kubectl_path(self) -> Path:
        found = shutil.which("kubectl")
        return Path(found) if found else control_plane().kubectl
