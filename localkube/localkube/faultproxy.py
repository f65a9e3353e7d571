"""A TLS proxy between one client and the API server that injects faults at an exact write.

It numbers the writes that matter. It calls a hook before it forwards a write, and again after the server has committed
the write and before the client has the reply. The second point finds double restarts: the server's state has changed and
the client does not know. Reads and watches pass unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import aiohttp
from aiohttp import web

from localkube.certs import Authority
from localkube.cluster import Cluster

START_SECONDS: Final = 10.0
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"}
)
_NOISE: Final = ("/leases", "/events", "/tokenreviews", "/token")


class FaultPoint(enum.Enum):
    """When the hook is called."""

    BEFORE = "before the server sees it"
    AFTER = "committed, reply not sent"


@dataclass(frozen=True)
class Write:
    """One request that changes the server's state."""

    number: int
    method: str
    path: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


Hook = Callable[[Write, FaultPoint], bool]
"""Injects a fault, then returns True if the proxy is to cut the connection. Runs on the proxy's thread."""


@dataclass(frozen=True)
class Upstream:
    """The API server, its CA, and the proxy's own certificate and key (PEM files)."""

    url: str
    ca_file: Path
    certificate_file: Path
    key_file: Path


def upstream_of(cluster: Cluster) -> Upstream:
    """A cluster's API server, with a new certificate for the proxy from the cluster's CA, in the cluster's files."""
    pki = cluster.layout.pki
    pair = Authority.load(pki).server("fault-proxy", ["127.0.0.1", "localhost"])
    certificate, key = pair.write(pki, "fault-proxy")
    return Upstream(cluster.server_url, pki / "ca.crt", certificate, key)


class FaultProxy:
    """Serves on a free port of 127.0.0.1 from `start()` to `stop()`."""

    def __init__(self, upstream: Upstream, hook: Hook) -> None:
        self.port = 0
        self.count = 0
        self._upstream = upstream
        self._hook = hook
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._done = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to serve and set `port`. Raises TimeoutError."""
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError(f"the fault proxy did not start within {START_SECONDS} s")

    def stop(self) -> None:
        """Cut all connections and end."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(timeout=START_SECONDS)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_side.load_cert_chain(self._upstream.certificate_file, self._upstream.key_file)
        client_side = ssl.create_default_context(cafile=str(self._upstream.ca_file))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(ssl=client_side, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            app = web.Application(client_max_size=16 * 2**20)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, session)

            app.router.add_route("*", "/{rest:.*}", handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_side)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._done.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        body = await request.read()
        write = self._numbered(request, body)
        if write and self._hook(write, FaultPoint.BEFORE):
            return _cut(request)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        url = self._upstream.url + request.raw_path
        async with session.request(request.method, url, data=body or None, headers=headers) as answer:
            if write is None:
                return await _stream(request, answer)
            content = await answer.read()
            if self._hook(write, FaultPoint.AFTER):
                return _cut(request)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            return web.Response(status=answer.status, body=content, headers=kept)

    def _numbered(self, request: web.Request, body: bytes) -> Write | None:
        if request.method not in _WRITES or any(mark in request.path for mark in _NOISE):
            return None
        self.count += 1
        return Write(self.count, request.method, request.path, body)


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
    response = web.StreamResponse(status=answer.status, headers=kept)
    # If one end disconnects, the other sees a cut stream, as with any proxy.
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    return response
