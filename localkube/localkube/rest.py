"""The few requests that a cluster makes to its own API server while it starts."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

_REQUEST_SECONDS = 5.0


class AdminClient:
    """Sends GET requests as the administrator."""

    def __init__(self, server_url: str, pki: Path) -> None:
        parts = urlsplit(server_url)
        self._host, self._port = parts.hostname or "", parts.port
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def answers_ok(self, path: str) -> bool:
        """Whether a GET of the path is answered with 200; false also if nobody answers."""
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_REQUEST_SECONDS, context=self._context
        )
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
