"""The control endpoint's certificate: read from mounted files, and read again without a restart when they change."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast_operator.sync_endpoint.expiry import expires_at

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
LOOK_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Certificate:
    """The server's TLS context, and the CA bundle that agents trust."""

    def __init__(self, folder: Path) -> None:
        """Read the files in ``folder``.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: certificate and key do not match, or are not PEM.
            ValueError: the certificate does not say when it expires.
        """
        self._folder = folder
        self.context = _new_context()
        self.ca_pem = ""
        self.expires_at: datetime
        self._digest = ""
        self.reload()

    def reload(self) -> bool:
        """Use the files' current content for new connections. Returns False if it has not changed."""
        digest = hashlib.sha256()
        for name in (CERTIFICATE, KEY, AUTHORITY):
            digest.update((self._folder / name).read_bytes() + b"\0")
        if digest.hexdigest() == self._digest:
            return False
        # Check a scratch context first: a pair that does not match must not change the live one.
        self._load(_new_context())
        expiry = expires_at((self._folder / CERTIFICATE).read_text())
        self._load(self.context)
        ca_pem = (self._folder / AUTHORITY).read_text()
        ssl.create_default_context(cadata=ca_pem)  # raises if agents could not read the bundle
        self.ca_pem = ca_pem
        self.expires_at = expiry
        self._digest = digest.hexdigest()
        return True

    async def follow(self, on_change: Callable[[], None], look_seconds: float = LOOK_SECONDS) -> None:
        """Read the files again and again until cancelled. Unusable files are logged, and the old content stays.

        Args:
            on_change: called after new content was taken.
            look_seconds: pause between two reads.
        """
        logged_error = ""
        while True:
            await asyncio.sleep(look_seconds)
            try:
                if self.reload():
                    log.info("control endpoint: certificate replaced")
                    on_change()
                logged_error = ""
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                if str(error) != logged_error:
                    logged_error = str(error)
                    log.error("control endpoint: keeping the old certificate: %s", error)  # noqa: TRY400  no trace helps

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
