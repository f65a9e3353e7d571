"""When a certificate expires, as the operator reads it and exports it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast_contract.reasons import Metric
from holdfast_operator.sync_endpoint.expiry import expires_at
from holdfast_operator.telemetry.prometheus_metrics import OperatorMetrics

SOON = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
PAST = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
FAR = datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC)
"""From 2050 on, certificates write times in another type."""


def certificate(until: datetime, host: str = "holdfast") -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    builder = x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(until - timedelta(days=30))
    names = x509.SubjectAlternativeName([x509.DNSName(f"{host}-{n}.example") for n in range(20)])
    signed = builder.not_valid_after(until).add_extension(names, critical=False).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("instant", [SOON, PAST, FAR])
def test_the_end_of_a_certificate(instant: datetime) -> None:
    assert expires_at(certificate(instant)) == instant


def test_of_a_chain_with_remarks_the_first_counts() -> None:
    assert expires_at(f"subject=holdfast\n{certificate(SOON)}issuer=ours\n{certificate(FAR)}") == SOON


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="found no certificate, allowed: PEM"):
        expires_at("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(ValueError, match="found no end of validity"):
        expires_at("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----")


def test_it_is_exported() -> None:
    metrics = OperatorMetrics()
    metrics.set_certificate_expiry(SOON)
    assert metrics.registry.get_sample_value(Metric.CERTIFICATE_EXPIRY) == SOON.timestamp()
