"""How long an accepted token is taken without another review."""

from __future__ import annotations

import base64
import json
import time
from typing import Any, cast

import pytest

from holdfast_operator.gateway.kube import Kube
from holdfast_operator.sync_endpoint.authentication import (
    ACCEPTED_SECONDS,
    SHORTEST_ACCEPTED_SECONDS,
    PodAuthenticator,
)
from holdfast_operator.sync_endpoint.board import PodIdentity
from tests.support import virtual_time

POD = "authentication.kubernetes.io/pod-"


class Reviewer:
    """An API server that accepts every token."""

    def __init__(self) -> None:
        self.reviews = 0

    async def review_token(self, token: str, audiences: list[str]) -> dict[str, Any]:
        assert token
        self.reviews += 1
        user = {"username": "system:serviceaccount:ns:default", "extra": {f"{POD}name": ["p"], f"{POD}uid": ["u"]}}
        return {"authenticated": True, "audiences": audiences, "user": user}


def token(payload: object) -> str:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"head.{base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')}.signature"


@pytest.mark.parametrize(
    ("payload", "seconds"),
    [
        ({"exp": time.time() + 3600}, ACCEPTED_SECONDS),
        ({"exp": time.time() - 30}, SHORTEST_ACCEPTED_SECONDS),
        ({}, SHORTEST_ACCEPTED_SECONDS),
        ([], SHORTEST_ACCEPTED_SECONDS),
        ("no JSON", SHORTEST_ACCEPTED_SECONDS),
        ({"exp": "never"}, SHORTEST_ACCEPTED_SECONDS),
    ],
)
def test_a_token_is_reviewed_again_in_time(payload: object, seconds: float) -> None:
    now = 1000.0
    reviewer = Reviewer()
    authenticator = PodAuthenticator(cast("Kube", reviewer), clock=lambda: now)

    def ask() -> object:
        return virtual_time.run(authenticator.authenticate(token(payload)))

    assert ask() == PodIdentity("ns", "p", "u")
    now += seconds - 1
    ask()
    assert reviewer.reviews == 1
    now += 2
    ask()
    assert reviewer.reviews == 2
