"""The endpoint that agents call: it takes one report and returns one directive. It writes only to the board.

200  the directive                              408 413 415  a slow, large or wrong body
400  the report is invalid (names the field)    421          this replica does not lead: ask the leader
401  the token does not prove a pod             429          too many requests
403  the pod is not a member: directive Exit    503          no decision yet, or the API server does not answer
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from aiohttp import web

from holdfast_contract import codec, keys, sync
from holdfast_contract.reasons import Metric
from holdfast_operator.decide.actions import Count
from holdfast_operator.gateway.kube_errors import KubeError
from holdfast_operator.interfaces import Metrics
from holdfast_operator.sync_endpoint.authentication import CallerRefused, PodAuthenticator
from holdfast_operator.sync_endpoint.board import Board, NotMember, NotReady, PodIdentity
from holdfast_operator.sync_endpoint.body import BodyError, parse_report
from holdfast_operator.sync_endpoint.limits import ConnectionGuard, RateLimit

BODY_SECONDS: Final = 10.0
HANDSHAKE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1
REPORTS_PER_SECOND, REPORTS_BURST = 5.0, 20.0
"""Per pod. An agent whose trainer steps reports about once a second."""
REVIEWS_PER_SECOND, REVIEWS_BURST = 50.0, 500.0
"""Per address, for tokens that are not cached: more than a node's pods need, too few to load the API server."""

log = logging.getLogger(__name__)


class Leadership(Protocol):
    """Which replica leads."""

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""

    @property
    def leader_address(self) -> str:
        """host:port of the other replica that leads; "" if no such replica is known."""


class ControlEndpoint:
    """Serves ``POST /v1/sync`` over TLS."""

    def __init__(
        self, *, board: Board, authenticator: PodAuthenticator, leadership: Leadership, metrics: Metrics
    ) -> None:
        """Connect the parts; ``start`` listens.

        Args:
            board: takes the reports and gives the directives.
            authenticator: proves which pod calls, and for which job it works.
            leadership: only a leader serves; other replicas name the leader.
            metrics: counts the requests by status.
        """
        self._board, self._authenticator, self._leadership, self._metrics = board, authenticator, leadership, metrics
        self._reports = RateLimit(REPORTS_PER_SECOND, REPORTS_BURST)
        self._reviews = RateLimit(REVIEWS_PER_SECOND, REVIEWS_BURST)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.guard = ConnectionGuard(self._make_protocol)

    async def start(self, host: str | None, port: int, context: ssl.SSLContext) -> int:
        """Listen for agents.

        Args:
            host: address to bind; None means all interfaces.
            port: port to bind; 0 means any free one.
            context: the server's TLS context.

        Returns:
            The port that is bound.

        Raises:
            OSError: the port cannot be bound.
        """
        # A request that is refused early may still send its body: at most one report is read.
        app = web.Application(client_max_size=sync.MAX_BODY_BYTES, middlewares=[self._frame])
        app.router.add_post(keys.SYNC_PATH, self._sync)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self.guard, host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS, backlog=1024
        )
        families = {s.family: s.getsockname()[1] for s in self._server.sockets}
        return int(families.get(socket.AF_INET) or next(iter(families.values())))

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _make_protocol(self) -> asyncio.Protocol:
        if self._runner is None or self._runner.server is None:
            raise RuntimeError("the endpoint has not been started")
        return self._runner.server()

    @web.middleware
    async def _frame(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Around every request: stop the connection's timer, give errors one form, count by status."""
        self.guard.busy(request.transport)
        status = 499  # the caller left
        try:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _error(error.status, error.reason, headers=_only(error.headers, "Allow"))
            except Exception:  # the caller must not see what failed here
                log.exception("sync request failed")
                response = _error(500, "internal error")
            status = response.status
            if status not in {200, 503}:
                response.force_close()  # a refused caller need not keep its connection
            return response
        finally:
            self._metrics.count(Count(Metric.SYNC_REQUESTS, labels={"code": str(status)}))
            self.guard.idle(request.transport)

    async def _sync(self, request: web.Request) -> web.StreamResponse:
        if not self._leadership.leading:
            return self._redirect_to_leader()
        token = _bearer(request)
        if not token:
            return _error(401, "the request has no bearer token", headers={"WWW-Authenticate": "Bearer"})
        if not self._authenticator.is_cached(token) and (wait := self._reviews.take(request.remote)):
            return _too_many(wait)
        try:
            pod = await self._authenticator.authenticate(token)
            if isinstance(pod, CallerRefused):
                return _error(401, pod.why, headers={"WWW-Authenticate": "Bearer"})
            if wait := self._reports.take(pod):
                return _too_many(wait)
            job = await self._authenticator.job_of(pod)
        except KubeError as error:
            log.warning("sync request: the caller cannot be authenticated now: %s", error)
            return _unavailable("the API server does not answer now")
        if isinstance(job, CallerRefused):
            return _exit()
        return await self._exchange(request, pod, job)

    async def _exchange(self, request: web.Request, pod: PodIdentity, job: str) -> web.StreamResponse:
        """Put the report on the board and wait for a directive."""
        if request.content_type != "application/json":
            return _error(415, f"Content-Type: found {request.content_type!r:.80}, allowed: application/json")
        try:
            hold = _hold_seconds(request)
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
            report = parse_report(body)
        except TimeoutError:
            return _error(408, f"the body was not complete within {BODY_SECONDS:.0f} s")
        except BodyError as error:
            log.info("report refused: %s", error, extra={"namespace": pod.namespace, "job": job, "pod": pod.name})
            return _error(400, str(error), field=error.field)
        if not self._leadership.leading:
            return self._redirect_to_leader()
        self._board.put_report(pod, job, report)
        answer = await self._board.directive(pod, job, report.obeys, hold)
        if not self._leadership.leading:
            return self._redirect_to_leader()
        if isinstance(answer, NotMember):
            return _exit()
        if isinstance(answer, NotReady):
            return _unavailable("the operator has not decided about this pod yet")
        return _directive(200, answer)

    def _redirect_to_leader(self) -> web.StreamResponse:
        leader = self._leadership.leader_address
        if not leader:
            return _unavailable("no replica of the operator is known to lead now")
        directive = sync.Directive(sync.Action.WAIT, 0, leader=leader)
        return _directive(421, directive, {sync.LEADER_HEADER: leader})


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _hold_seconds(request: web.Request) -> float:
    text = request.headers.get(sync.WAIT_HEADER)
    if text is None:
        return sync.HOLD_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= sync.HOLD_SECONDS:
        raise BodyError(sync.WAIT_HEADER, text, f"0 to {sync.HOLD_SECONDS:g} seconds")
    return seconds


def _directive(status: int, directive: sync.Directive, headers: Mapping[str, str] | None = None) -> web.Response:
    body = codec.encode(directive)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _exit() -> web.Response:
    return _directive(403, sync.Directive(sync.Action.EXIT, 0, why="this pod is not a worker of the job any more"))


def _unavailable(why: str) -> web.Response:
    return _error(503, why, headers={"Retry-After": str(RETRY_SECONDS)})


def _too_many(wait_seconds: float) -> web.Response:
    return _error(429, "too many requests", headers={"Retry-After": str(max(1, math.ceil(wait_seconds)))})


def _error(status: int, message: str, *, field: str = "", headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"error": message} | ({"field": field} if field else {})
    return web.Response(status=status, text=json.dumps(body), content_type="application/json", headers=headers)


def _only(headers: Mapping[str, str], name: str) -> dict[str, str]:
    return {name: headers[name]} if name in headers else {}
