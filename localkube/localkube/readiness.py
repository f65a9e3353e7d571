"""What a cluster asks its own API server until a step of its start is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_REQUEST_SECONDS = 5.0


class ReadinessCheck:
    """Asks as the administrator. Every answer is false while the API server refuses or does not answer."""

    def __init__(self, configuration: Configuration) -> None:
        from kubernetes import client

        configuration.retries = False  # the caller asks again; the library would also log each try
        self._api = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._api)
        self._server_url = configuration.host

    def api_server(self) -> bool:
        """Whether the API server calls itself ready."""
        answer = _answer(self._api.call_api, "GET", f"{self._server_url}/readyz")
        return answer is not None and answer.status == HTTPStatus.OK

    def default_account(self) -> bool:
        """Whether the namespace `default` has the ServiceAccount that its pods need."""
        return _answer(self._core.read_namespaced_service_account, "default", "default") is not None

    def node(self, name: str) -> bool:
        """Whether a node is Ready."""
        answer = _answer(self._core.read_node, name, _preload_content=False)
        if answer is None:
            return False
        conditions = json.loads(answer.data).get("status", {}).get("conditions") or []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _answer(request: Callable[..., Any], *arguments: str, **options: bool) -> Any:
    """What the API server answers; None if it refuses or does not answer."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return request(*arguments, _request_timeout=_REQUEST_SECONDS, **options)
    except (ApiException, HTTPError):
        return None
