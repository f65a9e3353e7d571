"""When a certificate expires. The standard library tells that only of a peer's certificate that is still valid."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_CONTEXT_0: Final = 0xA0
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""ASN.1's two types of time by tag: UTCTime until 2049, GeneralizedTime from 2050 (RFC 5280, 4.1.2.5)."""


def expires_at(pem: str) -> datetime:
    """The end of the validity of the first certificate in ``pem``. Raises ValueError if there is none."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("found no certificate, allowed: PEM with at least one")
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(found[0]))
    except (IndexError, KeyError, StopIteration) as error:
        raise ValueError(f"found no end of validity in the certificate: {error!r}") from None


def _not_after(der: bytes) -> datetime:
    """Certificate > tbsCertificate > validity > notAfter (RFC 5280, 4.1)."""
    _, certificate = next(_elements(der))
    _, to_be_signed = next(_elements(certificate))
    fields = [content for tag, content in _elements(to_be_signed) if tag != _CONTEXT_0]  # without the version
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, text) = _elements(validity)
    return datetime.strptime(text.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in a sequence of DER elements."""
    at = 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length & 0x80:  # the long form: the low bits count the bytes of the length
            begin += length & 0x7F
            length = int.from_bytes(der[at + 2 : begin], "big")
        at = begin + length
        yield tag, der[begin:at]
