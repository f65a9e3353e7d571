"""The control endpoint's certificate: read from mounted files, replaced without a restart when they change."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
LOOK_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Certificate:
    """The server's TLS context, and the CA bundle that agents are given.

    Raises:
        OSError: a file cannot be read.
        ssl.SSLError: certificate and key do not belong together, or are no PEM.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.context = _new_context()
        self.ca_pem = ""
        self._digest = ""
        self.reload()

    def reload(self) -> bool:
        """Take the files' present content for new connections; False if it has not changed."""
        digest = hashlib.sha256()
        for name in (CERTIFICATE, KEY, AUTHORITY):
            digest.update((self._folder / name).read_bytes() + b"\0")
        if digest.hexdigest() == self._digest:
            return False
        # A pair that does not match must not touch the live context half-way.
        self._load(_new_context())
        self._load(self.context)
        ca_pem = (self._folder / AUTHORITY).read_text()
        ssl.create_default_context(cadata=ca_pem)  # refuses what agents could not read
        self.ca_pem = ca_pem
        self._digest = digest.hexdigest()
        return True

    async def follow(self, on_change: Callable[[], None], look_seconds: float = LOOK_SECONDS) -> None:
        """Look at the files until cancelled. Files that cannot be used are reported, and the old ones kept."""
        complaint = ""
        while True:
            await asyncio.sleep(look_seconds)
            try:
                if self.reload():
                    log.info("control endpoint: certificate replaced")
                    on_change()
                complaint = ""
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("control endpoint: keeping the old certificate: %s", error)  # noqa: TRY400  no trace helps

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
