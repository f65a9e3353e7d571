"""Tokens with another expiry, signed with the key of a test's own control plane.

The API server issues none that lives for less than ten minutes. Everything but the times stays as it issued it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature


def claims(token: str) -> dict[str, Any]:
    """What a token says. Times are in seconds since 1970."""
    found: dict[str, Any] = json.loads(_from_base64(token.split(".")[1]))
    return found


def with_times(token: str, key_file: Path, *, issued: int, expires: int) -> str:
    """The token as if it had been issued and would expire at these instants, in seconds since 1970."""
    key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{key_file}: found {type(key).__name__}, allowed: an elliptic curve key (ES256)")
    head = token.split(".", maxsplit=1)[0]
    body = _to_base64(json.dumps(claims(token) | {"iat": issued, "nbf": issued, "exp": expires}).encode())
    r, s = decode_dss_signature(key.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())))
    return f"{head}.{body}.{_to_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
