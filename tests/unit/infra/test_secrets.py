"""The script that makes certificates and passwords: what it makes fits together, once, and is renewed on wish."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

script = Path(__file__).parents[3] / "infra" / "make-secrets.sh"
roles = ("creator", "dispatcher", "rollout", "trainer", "watch")

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


def make(root: Path, *words: str) -> str:
    ended = subprocess.run(
        ["sh", str(script), *words],
        env=os.environ | {"ROLLOG_SECRETS": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def passwords(root: Path) -> dict[str, str]:
    return {role: (root / role / "password").read_text() for role in roles}


def certificate(path: Path) -> x509.Certificate:
    pem = path.read_bytes()
    return x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])


def test_every_role_has_a_password_of_its_own_and_the_output_has_none(tmp_path: Path) -> None:
    told = make(tmp_path)
    made = passwords(tmp_path)
    assert len(set(made.values())) == len(roles)
    assert all(len(password) == 64 for password in made.values())
    assert not any(password in told for password in made.values())


def test_a_role_s_folder_holds_its_password_and_the_authority_s_certificate_alone(tmp_path: Path) -> None:
    make(tmp_path)
    for role in roles:
        assert {path.name for path in (tmp_path / role).iterdir()} == {"ca.pem", "password"}
    assert "PRIVATE KEY" not in (tmp_path / "broker" / "ca.pem").read_text()
    assert {path.name for path in (tmp_path / "authority").iterdir()} >= {"ca.key", "ca.pem"}


def test_nobody_else_can_read_anything(tmp_path: Path) -> None:
    make(tmp_path)
    for path in tmp_path.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_certificates_are_of_the_authority_and_the_broker_s_names_its_host(tmp_path: Path) -> None:
    make(tmp_path)
    authority = certificate(tmp_path / "authority" / "ca.pem")
    for name in ("broker/broker.pem", "broker/health.pem", "admin/admin.pem"):
        made = certificate(tmp_path / name)
        made.verify_directly_issued_by(authority)
        ssl.create_default_context().load_cert_chain(tmp_path / name)
    names = certificate(tmp_path / "broker" / "broker.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["kafka", "localhost"]


def test_a_second_call_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert make(tmp_path) == ""
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_passwords_are_renewed_and_certificates_stay(tmp_path: Path) -> None:
    make(tmp_path)
    before, authority = passwords(tmp_path), (tmp_path / "authority" / "ca.pem").read_bytes()
    make(tmp_path, "passwords")
    after = passwords(tmp_path)
    assert all(before[role] != after[role] for role in roles)
    assert (tmp_path / "authority" / "ca.pem").read_bytes() == authority


def test_certificates_are_renewed_for_everybody_and_passwords_stay(tmp_path: Path) -> None:
    make(tmp_path)
    before = passwords(tmp_path)
    old = certificate(tmp_path / "authority" / "ca.pem")
    make(tmp_path, "certificates")
    new = certificate(tmp_path / "authority" / "ca.pem")
    assert old.fingerprint(old.signature_hash_algorithm) != new.fingerprint(new.signature_hash_algorithm)  # type: ignore[arg-type]
    for place in ("broker", "admin", *roles):
        assert certificate(tmp_path / place / "ca.pem") == new
    assert passwords(tmp_path) == before


def test_what_it_does_not_know_is_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["sh", str(script), "everything"],
        env=os.environ | {"ROLLOG_SECRETS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "'everything' is neither" in ended.stderr
