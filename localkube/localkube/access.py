"""Any cluster that can be reached with a kubeconfig: one of localkube's or one that the user already has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from localkube.binaries import control_plane

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

DISCOVERY_CACHE_VARIABLE = "KUBECACHEDIR"
"""Names the folder of `discovery_cache` to kubectl and Helm."""
KUBECTL_SECONDS = 60.0


class ClusterAccess:
    """A cluster, by its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kubeconfig

    @property
    def discovery_cache(self) -> Path | None:
        """Where kubectl and Helm keep what they learn about the server; None: their default, in the home folder."""
        return None

    def api_client(self) -> ApiClient:
        """A client of the kubernetes library as the administrator."""
        from kubernetes import client

        return client.ApiClient(self._configuration())

    def _configuration(self) -> Configuration:
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_kube_config(
            str(self.kubeconfig), client_configuration=configuration, temp_file_path=self._client_files()
        )
        return configuration

    def _client_files(self) -> str | None:
        """Where the kubernetes library puts keys, which it removes only at a regular exit; None: its own choice."""
        return None

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, with `stdin` as its input.

        Raises CalledProcessError if it fails and `check` is set, TimeoutExpired after a minute.
        """
        return subprocess.run(
            [*self.kubectl_command(), *arguments],
            input=stdin,
            check=check,
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
        )

    def kubectl_command(self) -> list[str]:
        """The first words of a kubectl command line as the administrator, for a command that runs longer."""
        cache = self.discovery_cache
        return [
            str(self._kubectl_path()),
            f"--kubeconfig={self.kubeconfig}",
            *([f"--cache-dir={cache}"] if cache else []),
        ]

    def _kubectl_path(self) -> Path:
        found = shutil.which("kubectl")
        return Path(found) if found else control_plane().kubectl
