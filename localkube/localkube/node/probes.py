"""Startup, readiness and liveness probes of one running container."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from localkube.node.objects import Json

Inside = Callable[[list[str], float], Awaitable[tuple[int, str]]]
"""Called with (command, seconds), runs the command in the container. Returns its exit code and output."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the probes of one container need."""

    container: Json
    address: str
    inside: Inside
    session: aiohttp.ClientSession
    """It must not verify certificates: a kubelet does not either."""

    def port(self, named: int | str) -> int:
        """A port, given by its number or its name in the container. Raises ValueError."""
        if isinstance(named, int) or named.isdigit():
            return int(named)
        for port in self.container.get("ports") or []:
            if port.get("name") == named:
                return int(port["containerPort"])
        raise ValueError(f"the container has no port named {named!r}")

    async def check(self, handler: Json, seconds: float) -> str:
        """Try the action of a probe or hook once. Returns the problem, empty if it succeeded."""
        try:
            async with asyncio.timeout(seconds):
                return await self._try(handler, seconds)
        except TimeoutError:
            return f"no answer within {seconds} s"
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            return str(problem) or type(problem).__name__

    async def _try(self, handler: Json, seconds: float) -> str:
        if "exec" in handler:
            code, output = await self.inside(handler["exec"]["command"], seconds)
            return "" if code == 0 else f"exit code {code}: {output}"
        if "httpGet" in handler:
            return await self._http(handler["httpGet"])
        if "tcpSocket" in handler:
            where = handler["tcpSocket"]
            _, writer = await asyncio.open_connection(where.get("host") or self.address, self.port(where["port"]))
            writer.close()
            return ""
        if "sleep" in handler:
            await asyncio.sleep(handler["sleep"]["seconds"])
            return ""
        return f"a handler of kind {sorted(handler)} is not supported by process nodes"

    async def _http(self, where: Json) -> str:
        scheme, host = where.get("scheme", "HTTP").lower(), where.get("host") or self.address
        path = "/" + where.get("path", "/").lstrip("/")
        headers = {header["name"]: header["value"] for header in where.get("httpHeaders") or []}
        url = f"{scheme}://{host}:{self.port(where['port'])}{path}"
        async with self.session.get(url, headers=headers) as response:
            return "" if 200 <= response.status < 400 else f"HTTP status {response.status}"


async def probe(target: Target, spec: Json, settle: Callable[[bool, str], Awaitable[None]]) -> None:
    """Probe `target` for ever, as `spec` (the probe's part of the pod) says.

    `settle` is called with (good, problem) each time one of the thresholds is reached.
    """
    period, timeout = float(spec.get("periodSeconds") or 10), float(spec.get("timeoutSeconds") or 1)
    needed = {True: int(spec.get("successThreshold") or 1), False: int(spec.get("failureThreshold") or 3)}
    await asyncio.sleep(float(spec.get("initialDelaySeconds") or 0))
    streak, last = 0, None
    while True:
        problem = await target.check(spec, timeout)
        good = not problem
        streak = streak + 1 if good == last else 1
        last = good
        if streak >= needed[good]:
            await settle(good, problem)
        await asyncio.sleep(period)
