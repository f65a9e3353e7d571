"""The kubelet's HTTPS endpoint for container logs, so that `kubectl logs` works."""

import asyncio
import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CHUNK_BYTES = 65536
FOLLOW_SECONDS = 0.1
CERTIFICATE_DAYS = 365

Found = tuple[Path, Callable[[], bool]]
Find = Callable[[str, str, str, bool], Found | None]
"""Called with (namespace, pod, container, previous), returns (log file, whether it grows), None if there is none."""


def self_signed(address: str) -> ssl.SSLContext:
    """A TLS server context for one address. By default API servers do not verify a kubelet's certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    builder = x509.CertificateBuilder(
        issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(hours=1),
        not_valid_after=now + dt.timedelta(days=CERTIFICATE_DAYS),
    )  # fmt: skip
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as both:
        both.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        both.flush()
        context.load_cert_chain(both.name)
    return context


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        if lines <= 0:
            return end
        found, position = 0, end
        while position > 0:
            step = min(CHUNK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step)
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                if position + at == end - 1:
                    continue  # the newline that ends the last line begins none
                found += 1
                if found >= lines:
                    return position + at + 1
    return 0


class LogServer:
    """Serves `/containerLogs/{namespace}/{pod}/{container}`."""

    def __init__(self, address: str, find: Find) -> None:
        self._address = address
        self._find = find
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen on a free port, which is returned."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, 0, ssl_context=self_signed(self._address))
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query, place = request.query, request.match_info
        unsupported = sorted({"timestamps", "sinceSeconds", "sinceTime"} & query.keys())
        if any(query[name] != "false" for name in unsupported):
            return web.Response(status=400, text=f"process nodes do not record times of lines: {unsupported}\n")
        previous = query.get("previous") == "true"
        found = self._find(place["namespace"], place["pod"], place["container"], previous)
        if found is None:
            return web.Response(status=404, text=f"no such log: container {place['container']!r} ({previous=})\n")
        path, running = found
        offset = tail_offset(path, int(query["tailLines"])) if "tailLines" in query else 0
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with path.open("rb") as file:
            file.seek(offset)
            while left is None or left > 0:
                alive = running()
                data = file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
                if data:
                    await response.write(data)
                    left = None if left is None else left - len(data)
                elif query.get("follow") == "true" and alive:
                    await asyncio.sleep(FOLLOW_SECONDS)
                else:
                    break
        await response.write_eof()
        return response
