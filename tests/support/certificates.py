"""Certificates for tests: one that signs itself, and an authority that signs others."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def a_certificate(directory: Path, *, passphrase: bytes | None = None) -> tuple[Path, Path]:
    """PEM files of certificate and key."""
    pytest.importorskip("cryptography", reason="makes the certificate")
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    sealed: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        sealed = serialization.BestAvailableEncryption(passphrase)
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    )
    return certificate, private


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM files of a certificate, its key, and both in one, as Java takes them."""

    certificate: Path
    key: Path
    store: Path


class Authority:
    """A certificate authority of its own, with its files in one directory."""

    def __init__(self, directory: Path, name: str = "test-authority") -> None:
        pytest.importorskip("cryptography", reason="makes the certificates")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = _common_name(name)
        self._key = _new_key()
        self._certificate = _signed(
            self._name, self._name, self._key, self._key, days=(-1, 30), names=(), is_authority=True
        )
        self.path = directory / f"{name}.pem"
        """PEM file of the authority's own certificate."""
        self.path.write_bytes(_pem(self._certificate))

    def issue(
        self,
        common_name: str,
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        days: tuple[int, int] = (-1, 30),
        passphrase: bytes | None = None,
        file_name: str = "",
    ) -> Issued:
        """A certificate for `hosts` that counts from the first to the second of `days`, counted from now."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        key = _new_key()
        signed = _signed(
            _common_name(common_name), self._name, key, self._key, days=days, names=hosts, is_authority=False
        )
        sealed: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            sealed = serialization.BestAvailableEncryption(passphrase)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        base = self._directory / (file_name or common_name)
        issued = Issued(*(base.with_suffix(suffix) for suffix in (".crt.pem", ".key.pem", ".store.pem")))
        issued.certificate.write_bytes(_pem(signed))
        issued.key.write_bytes(private)
        issued.store.write_bytes(private + _pem(signed))
        return issued


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP256R1())


def _common_name(name: str) -> Any:
    from cryptography import x509  # noqa: PLC0415

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _signed(
    subject: Any,
    issuer: Any,
    key: Any,
    signer: Any,
    *,
    days: tuple[int, int],
    names: tuple[str, ...],
    is_authority: bool,
) -> Any:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=days[0]))
        .not_valid_after(now + dt.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative_name(name) for name in names]), critical=False
        )
    return builder.sign(signer, hashes.SHA256())


def _alternative_name(name: str) -> Any:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
