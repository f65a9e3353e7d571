"""Requests to the API server from the event loop, each with a deadline that also covers name resolution.

The ``kubernetes`` client provides configuration, TLS, proxies, credentials and the request itself. Its generated API
methods are not used: they turn answers into model objects, which takes about thirty times as long as the JSON alone (a
list of 16 pods: 4 ms instead of 0.14 ms). Calls run in a bounded pool of threads, since the client blocks.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlencode

import urllib3.exceptions
from kubernetes.client import ApiClient, ApiException, Configuration

from holdfast_operator.gateway import kube_errors

THREADS: Final = 16
CONNECT_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 10.0
"""For one request, from name resolution to the last byte. Longer than the API server's own limits for small objects."""
QUEUE_SECONDS: Final = 5.0
"""How long a request may wait for a free thread on top of its own deadline."""

MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON_TYPE: Final = "application/json"


class Transport:
    """Sends JSON requests to one API server, from one event loop. Call ``close`` once at the end."""

    def __init__(self, configuration: Configuration, threads: int = THREADS) -> None:
        # A hidden retry could repeat a write that has happened already: only the callers decide about retries.
        configuration.retries = False
        configuration.connection_pool_maxsize = threads
        self._client = ApiClient(configuration)
        self._client.user_agent = "holdfast-operator"
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kube")

    async def request(  # noqa: PLR0913  a request has this many parts; all but two are named at the call
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON_TYPE,
        accept: str = JSON_TYPE,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> dict[str, Any]:
        """Send one request; return the parsed JSON answer.

        Args:
            method: HTTP method.
            path: quoted path on the API server.
            what: the request in words, for error messages.
            query: query parameters.
            body: sent as JSON; None sends no body.
            content_type, accept: media types of the body and of the answer.
            deadline_seconds: time for the request once a thread is free.

        Raises:
            KubeError: the class fits the answer; Unavailable if there is none before the deadline.
        """
        loop = asyncio.get_running_loop()
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": content_type})
        call = loop.run_in_executor(self._threads, self._request, method, url, what, body, headers, deadline_seconds)
        try:
            async with asyncio.timeout(deadline_seconds + QUEUE_SECONDS):
                return await call
        except TimeoutError:
            raise kube_errors.Unavailable(what, reason="DeadlineExceeded", message="no answer in time") from None

    def _request(
        self, method: str, url: str, what: str, body: Any, headers: dict[str, str], deadline_seconds: float
    ) -> dict[str, Any]:
        # Credentials are added to each request: the client reads the token file again as it rotates.
        _, _, headers, _, _ = self._client.param_serialize(
            method, url, header_params=headers, auth_settings=["BearerToken"]
        )
        address = f"{self._client.configuration.host}{url}"
        timeout = (min(CONNECT_SECONDS, deadline_seconds), deadline_seconds)
        try:
            response = self._client.call_api(method, address, headers, body, _request_timeout=timeout)
            data: bytes = response.read()
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise kube_errors.Unavailable(what, reason=type(error).__name__, message=str(error)[:300]) from None
        if response.status >= 400:
            raise kube_errors.from_response(what, response.status, data, response.getheader("Retry-After"))
        try:
            parsed = json.loads(data)
        except ValueError:
            raise kube_errors.Unavailable(
                what, response.status, "NotJson", data[:100].decode(errors="replace")
            ) from None
        if not isinstance(parsed, dict):
            raise kube_errors.Unavailable(what, response.status, "NotAnObject", str(parsed)[:100])
        return parsed

    def close(self) -> None:
        """Cancel waiting calls and close connections; running calls end at their own deadlines."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
