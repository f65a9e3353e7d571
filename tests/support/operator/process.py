"""The operator as its users run it: a process with an environment, certificates in a folder, ports of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast_contract import codec, keys, sync
from tests.support.operator import tls
from tests.support.polling import until

HOST: Final = "holdfast.holdfast-system.svc"
START_SECONDS: Final = 30.0


def write_certificate(authority: tls.Authority, folder: Path, host: str = HOST) -> None:
    """tls.crt, tls.key and ca.crt as a mounted Secret has them."""
    folder.mkdir(parents=True, exist_ok=True)
    context = folder / "scratch"
    context.mkdir(exist_ok=True)
    tls.server_context(authority, context, host)
    [both] = context.iterdir()
    text = both.read_text()
    both.unlink()
    context.rmdir()
    cut = text.index("-----BEGIN CERTIFICATE-----")
    for name, content in (("tls.key", text[:cut]), ("tls.crt", text[cut:]), ("ca.crt", authority.pem)):
        (folder / name).write_text(content)


class OperatorProcess:
    """One running replica."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        namespace: str,
        *,
        host: str = HOST,
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """``host``: the name in its certificate, if ``folder/tls`` holds one already; ``prefix``: runs its command."""
        self.folder, self.host, self.name = (
            folder,
            host,
            environment.get("HOLDFAST_OPERATOR_POD_NAME", f"op-{secrets.token_hex(3)}"),
        )
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tls").exists():
            self.authority = tls.new_authority()
            write_certificate(self.authority, folder / "tls")
        self.log = folder / f"{self.name}-{secrets.token_hex(3)}.log"
        own = {
            "NAMESPACE": namespace,
            "POD_NAME": self.name,
            "POD_IP": "127.0.0.1",
            "CONTROL_URL": f"https://{HOST}:8443",
            "TLS_DIR": str(folder / "tls"),
            "LEASE_NAME": "holdfast",
            "WATCH_NAMESPACES": namespace,
            "BIND_ADDRESS": "127.0.0.1",
            **{f"{port}_PORT": "0" for port in ("CONTROL", "HEALTH", "METRICS")},
        }
        variables = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            **{f"HOLDFAST_OPERATOR_{name}": value for name, value in own.items()},
            **environment,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "holdfast_operator"], env=variables, stderr=log, stdout=log
            )

    # ---- life

    def ports(self) -> Mapping[str, int]:
        """The ports that it says it has taken."""
        line = until(lambda: self.logged("listening as"), START_SECONDS, "listening")
        return {name: int(port) for name, port in re.findall(r"(\w+)=(\d+)", line["message"])}

    def logged(self, text: str) -> dict[str, Any] | None:
        """The first log record whose message contains this."""
        assert self.process.poll() is None or text in self.log.read_text(), self.log.read_text()
        for line in self.log.read_text().splitlines():
            if text in line:
                with suppress(ValueError):
                    record: dict[str, Any] = json.loads(line)
                    return record
        return None

    def wait_leading(self, seconds: float = START_SECONDS) -> OperatorProcess:
        """Itself, once it leads."""
        until(lambda: self.logged("leading as"), seconds, "leading")
        return self

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Its exit code after this signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    # ---- what it serves

    def get(self, server: str, path: str) -> tuple[int, str]:
        """Status and body of a plain request to its health or metrics server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports()[server], timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def connect(self, authority_pem: str | None = None) -> http.client.HTTPSConnection:
        """A TLS connection to the control endpoint that trusts the folder's ca.crt (or the one given)."""
        trusted = authority_pem or (self.folder / "tls" / "ca.crt").read_text()
        context = ssl.create_default_context(cadata=trusted)
        return _NamedConnection(self.host, self.ports()["control"], context=context, timeout=40)

    def sync(
        self, token: str | None, report: sync.Report | bytes, *, wait: float = 0.0, **headers: str
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Send one report; (status, body as JSON, headers)."""
        body = report if isinstance(report, bytes) else codec.encode(report)
        all_headers = {"Content-Type": "application/json", sync.WAIT_HEADER: f"{wait:g}"}
        if token is not None:
            all_headers["Authorization"] = f"Bearer {token}"
        all_headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection = self.connect()
        try:
            connection.request("POST", keys.SYNC_PATH, body, all_headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else {}, dict(response.headers)
        finally:
            connection.close()


class _NamedConnection(http.client.HTTPSConnection):
    """Connects to this machine and demands the Service's name, as agents do."""

    def connect(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), self.timeout)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)  # type: ignore[attr-defined]


def self_signed(folder: Path) -> None:
    """A certificate and a key that do not belong together, as in the middle of a careless rotation."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = serialization.PrivateFormat.PKCS8
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )


def fingerprint(connection: http.client.HTTPSConnection) -> bytes:
    """SHA-256 of the certificate that the server shows now."""
    connection.connect()
    shown = connection.sock.getpeercert(binary_form=True)
    assert isinstance(shown, bytes)
    connection.close()
    return x509.load_der_x509_certificate(shown).fingerprint(hashes.SHA256())
