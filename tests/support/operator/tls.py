"""Throw-away certificate authorities and server certificates for tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """A certificate authority that lives as long as the test."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        """What a client trusts."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def new_authority(name: str = "test authority") -> Authority:
    """A self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Authority(key, builder.sign(key, hashes.SHA256()))


def server_context(authority: Authority, folder: Path, *names: str) -> ssl.SSLContext:
    """A server's TLS context with a fresh certificate for these DNS names or addresses; its files go to ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    builder = _builder(names[0], authority.certificate.subject.rfc4514_string().removeprefix("CN="), key).add_extension(
        x509.SubjectAlternativeName(alternatives), critical=False
    )
    certificate = builder.sign(authority.key, hashes.SHA256())
    chain = folder / f"{names[0]}-{certificate.serial_number}.pem"
    private = serialization.PrivateFormat.PKCS8
    chain.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context
