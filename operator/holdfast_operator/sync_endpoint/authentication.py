"""Authentication of callers: a bearer token proves a pod, and the live pod names its job. Both answers are cached."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from holdfast_contract import keys
from holdfast_operator.gateway.kube import Json, Kube
from holdfast_operator.sync_endpoint.board import PodIdentity

ACCEPTED_SECONDS: Final = 120.0
"""How long an accepted token is not reviewed again, as a kubelet does by default; a token that ends sooner, sooner."""
SHORTEST_ACCEPTED_SECONDS: Final = 10.0
"""The API server itself takes a token for some time after its end, since clocks differ."""
REFUSED_SECONDS: Final = 2.0
CACHE_LIMIT: Final = 20_000
REVIEWS_AT_ONCE: Final = 8
MAX_TOKEN: Final = 16 * 1024
MAX_REASON: Final = 200

_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_ACCOUNT: Final = "system:serviceaccount:"

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class CallerRefused:
    """Why a caller is refused. Safe to send and to log: it contains nothing of the token."""

    why: str


class ExpiringCache(Generic[K, V]):
    """A bounded cache whose entries expire. The oldest entries are dropped first when it is full."""

    def __init__(self, clock: Callable[[], float], limit: int = CACHE_LIMIT) -> None:
        self._clock, self._limit = clock, limit
        self._items: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value, or None if the key is unknown or has expired."""
        found = self._items.get(key)
        if found is None:
            return None
        if found[1] <= self._clock():
            del self._items[key]
            return None
        return found[0]

    def put(self, key: K, value: V, seconds: float) -> V:
        """Store a value and return it.

        Args:
            key: replaces an entry of the same key.
            value: what ``get`` returns.
            seconds: time until the entry expires.
        """
        self._items.pop(key, None)
        self._items[key] = (value, self._clock() + seconds)
        while len(self._items) > self._limit:
            self._items.popitem(last=False)
        return value


class PodAuthenticator:
    """Finds the pod that a token is bound to, and the job that the pod works for."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._tokens: ExpiringCache[bytes, PodIdentity | CallerRefused] = ExpiringCache(clock)
        self._jobs: ExpiringCache[PodIdentity, str | CallerRefused] = ExpiringCache(clock)
        self._slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

    def is_cached(self, token: str) -> bool:
        """Whether this token's answer is cached, so that ``authenticate`` sends no request."""
        return self._tokens.get(_hash(token)) is not None

    async def authenticate(self, token: str) -> PodIdentity | CallerRefused:
        """The pod to which the token is bound, or why it is refused.

        Raises:
            KubeError: the API server did not answer.
        """
        if len(token) > MAX_TOKEN or token.count(".") != 2 or not token.isascii():
            return CallerRefused("the token is not a ServiceAccount token")
        key = _hash(token)
        found = self._tokens.get(key)
        if found is not None:
            return found
        async with self._slots:
            found = self._tokens.get(key)  # another request with this token may have been answered meanwhile
            if found is not None:
                return found
            reviewed = _read_review(await self._kube.review_token(token, [keys.TOKEN_AUDIENCE]))
            seconds = REFUSED_SECONDS if isinstance(reviewed, CallerRefused) else _accepted_seconds(token)
            return self._tokens.put(key, reviewed, seconds)

    async def job_of(self, identity: PodIdentity) -> str | CallerRefused:
        """The job that the pod works for, by its labels and its owner, or why it is refused.

        Asked once per pod, since a pod's job never changes.

        Raises:
            KubeError: the API server did not answer.
        """
        found = self._jobs.get(identity)
        if found is not None:
            return found
        async with self._slots:
            pod = await self._kube.get_pod(identity.namespace, identity.name)
        job = _job_of_pod(pod, identity)
        return self._jobs.put(identity, job, REFUSED_SECONDS if isinstance(job, CallerRefused) else 3600.0)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _accepted_seconds(token: str) -> float:
    """How long the answer about an accepted token counts. Only its end is read here; the API server has checked it."""
    payload = token.split(".")[1]
    try:
        ends = float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (ValueError, KeyError, TypeError):
        return SHORTEST_ACCEPTED_SECONDS
    return min(ACCEPTED_SECONDS, max(SHORTEST_ACCEPTED_SECONDS, ends - time.time()))


def _read_review(status: Json) -> PodIdentity | CallerRefused:
    """The pod that a TokenReview proves. Without the audience check, any token of the API server would pass."""
    if status.get("authenticated") is not True:
        why = str(status.get("error") or "wrong, expired, for another audience, or its pod no longer exists")
        return CallerRefused(f"the API server does not accept the token: {why[:MAX_REASON]}")
    if keys.TOKEN_AUDIENCE not in (status.get("audiences") or []):
        return CallerRefused(f"the token is not for audience {keys.TOKEN_AUDIENCE}")
    user = status.get("user") or {}
    username, extra = str(user.get("username") or ""), user.get("extra") or {}
    names, uids = extra.get(_POD_NAME) or [], extra.get(_POD_UID) or []
    if not username.startswith(_ACCOUNT) or len(names) != 1 or len(uids) != 1:
        return CallerRefused("the token is not bound to a pod")
    namespace = username.removeprefix(_ACCOUNT).partition(":")[0]
    return PodIdentity(namespace, str(names[0]), str(uids[0]))


def _job_of_pod(pod: Json | None, identity: PodIdentity) -> str | CallerRefused:
    if pod is None or pod["metadata"].get("uid") != identity.uid:
        return CallerRefused("the pod no longer exists")
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    name, uid = labels.get(keys.LABEL_JOB_NAME), labels.get(keys.LABEL_JOB_UID)
    for owner in meta.get("ownerReferences") or []:
        is_job = owner.get("kind") == keys.KIND and owner.get("apiVersion", "").startswith(f"{keys.API_GROUP}/")
        if is_job and owner.get("controller") and owner.get("name") == name and owner.get("uid") == uid:
            return str(name)
    return CallerRefused(f"the pod is not a worker of a {keys.KIND}")
