"""One request to the API server, from the event loop, with a deadline that holds.

The ``kubernetes`` client gives configuration, TLS, proxies and credentials; its generated model classes are left out
(they cost more time and memory than the JSON itself). Calls run in a bounded pool of threads.
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
"""For one request, name resolution to last byte. Longer than the API server's own limits for small objects."""
QUEUE_SECONDS: Final = 5.0
"""How long a request may wait for a free thread on top of its own deadline."""

MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON_TYPE: Final = "application/json"


class Transport:
    """JSON requests against one API server. Safe to call from one event loop; ``close`` once at the end."""

    def __init__(self, configuration: Configuration) -> None:
        # A hidden retry would repeat a write whose first copy may have happened: the callers alone decide on retries.
        configuration.retries = False
        configuration.connection_pool_maxsize = THREADS
        self._client = ApiClient(configuration)
        self._client.user_agent = "holdfast-operator"
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kube")

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
        """The parsed JSON answer.

        Raises:
            KubeError: of the class for the answer; Unavailable when there is none in ``deadline_seconds``.
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
        self, method: str, url: str, what: str, body: Any, headers: dict[str, str], deadline: float
    ) -> dict[str, Any]:
        # Credentials are added per request: the token file is read again as it rotates.
        _, _, headers, _, _ = self._client.param_serialize(
            method, url, header_params=headers, auth_settings=["BearerToken"]
        )
        address = f"{self._client.configuration.host}{url}"
        timeout = (min(CONNECT_SECONDS, deadline), deadline)
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
        """Give up waiting calls and connections; running calls end by their own deadlines."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
