"""A registry that is away, slow or talks nonsense: bounded in time and size, and named."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from support.certificates import a_certificate
from support.small_registry import SmallRegistry, Trouble, small_registry

from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.kernel.registry.client import RegistryAddress, RegistryClient, basic_credentials
from rollog.settings.registry import RegistryConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as served:
        yield served


def a_client(registry: SmallRegistry, **changes: object) -> RegistryClient:
    values = {"url": registry.url, "timeout_seconds": 20.0} | changes
    return RegistryClient(RegistryAddress(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (Trouble.SILENT, r"no whole answer in 0\.3 s"),
        (Trouble.TRICKLING, r"no whole answer in 0\.3 s"),
        (Trouble.FAILING, r"fails \(503\): no leader"),
        (Trouble.HTML, r"answers no JSON: '<html>hello"),
        (Trouble.NO_OBJECT, r"answers no object"),
        (Trouble.ENDLESS, r"answers more than 4194304 bytes"),
        (Trouble.CLOSING, r"cannot be asked \(RemoteDisconnected"),
    ],
)
def test_a_registry_in_trouble_is_one_to_ask_again(
    registry: SmallRegistry, trouble: Trouble, said: str
) -> None:
    registry.trouble = trouble
    is_slow = trouble in {Trouble.SILENT, Trouble.TRICKLING}
    client = a_client(registry, timeout_seconds=0.3 if is_slow else 20.0)
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable, match=said):
        client.schema_of(1)
    assert time.monotonic() - begin < 30


def test_nothing_that_listens_is_named_with_its_address() -> None:
    client = RegistryClient(RegistryAddress(url="http://127.0.0.1:9", timeout_seconds=2.0))
    with pytest.raises(RegistryUnreachable, match=r"http://127\.0\.0\.1:9 cannot be asked .*registry\.url"):
        client.schema_of(1)


def test_a_web_server_without_the_api_is_no_registry_that_lacks_a_schema(registry: SmallRegistry) -> None:
    registry.trouble = Trouble.HTML
    with pytest.raises(RegistryUnreachable, match="/apis/ccompat/v7"):
        a_client(registry).registered_id("a", {"type": "record"})


def test_redirections_are_not_followed(registry: SmallRegistry) -> None:
    registry.trouble = Trouble.REDIRECTING
    with pytest.raises(RegistryRefused, match=r"sends on to another address \(302\)"):
        a_client(registry, credentials=lambda: "Bearer secret-token").schema_of(1)
    assert len(registry.asked) == 1


def test_wrong_credentials_are_refused_and_not_shown() -> None:
    right = basic_credentials("me:sesame")
    with small_registry(credentials=right) as registry:
        registry.add('"int"')
        assert a_client(registry, credentials=lambda: right).schema_of(1) == '"int"'
        wrong = basic_credentials("me:planted-word")
        address = RegistryAddress(url=registry.url, credentials=lambda: wrong)
        with pytest.raises(RegistryRefused, match=r"refuses the credentials \(401\): Unauthorized") as caught:
            RegistryClient(address).schema_of(1)
        assert "planted" not in f"{caught.value} {address!r}"
        assert wrong not in f"{caught.value} {address!r}"


def test_a_certificate_must_be_trusted(tmp_path: Path) -> None:
    certificate, key = a_certificate(tmp_path)
    with small_registry(certificate=(certificate, key)) as registry:
        registry.add('"int"')
        trusting = a_client(registry, certificates=str(certificate), timeout_seconds=5.0)
        assert trusting.schema_of(1) == '"int"'
        with pytest.raises(RegistryRefused, match=r"no certificate that is trusted .*registry\.certificates"):
            a_client(registry, timeout_seconds=5.0).schema_of(1)
        other = RegistryAddress(
            url=registry.url.replace("127.0.0.1", "127.0.0.2"), certificates=str(certificate)
        )
        with pytest.raises((RegistryRefused, RegistryUnreachable)):
            RegistryClient(other).schema_of(1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "is no address of a schema registry"),
        ("host:8081", "is no address of a schema registry"),
        ("http://host:port", "is no address of a schema registry"),
        ("http://host/path?query=1", "is no address of a schema registry"),
        ("http://me:planted-word@host", "registry.credentials_file"),
    ],
)
def test_malformed_addresses_are_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        RegistryClient(RegistryAddress(url=url))
    assert "planted" not in str(caught.value)


def test_credentials_do_not_travel_in_clear() -> None:
    with pytest.raises(ConfigError, match="in clear: name an https address"):
        RegistryClient(RegistryAddress(url="http://registry:8081", credentials=lambda: "Bearer x"))


def test_a_file_that_holds_no_certificates_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(
        ConfigError, match=r"registry\.certificates = '.*none\.pem' is no file of certificates"
    ):
        RegistryClient(RegistryAddress(url="https://registry", certificates=str(tmp_path / "none.pem")))


def test_a_schema_that_is_not_avro_is_none(registry: SmallRegistry) -> None:
    registry.other_types.add(registry.add("message A {}"))
    assert a_client(registry, timeout_seconds=5.0).schema_of(1) is None


@pytest.mark.parametrize("found", [2**31, -1, "7", True, None])
def test_an_id_that_does_not_fit_the_frame_is_refused(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    monkeypatch.setattr(registry, "answer", lambda *_: (200, {"id": found}))
    with pytest.raises(RegistryUnreachable, match="does not fit four bytes"):
        a_client(registry, timeout_seconds=5.0).register("a", {"type": "record"})


def test_a_token_that_was_replaced_is_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("Bearer old")
    with small_registry(credentials="Bearer new") as registry:
        registry.add('"int"')
        address = RegistryConfig(url=registry.url, credentials_file=str(token)).address()
        assert address is not None
        client = RegistryClient(address)
        with pytest.raises(RegistryRefused, match="refuses the credentials"):
            client.schema_of(1)
        token.write_text("")
        with pytest.raises(RegistryRefused, match=r"registry\.credentials_file holds no credentials"):
            client.schema_of(1)
        token.write_text("Bearer new\n")
        assert client.schema_of(1) == '"int"'


@pytest.mark.parametrize("given", [{"a": 1}, ["a", 7], None])
def test_what_is_no_list_of_subjects_is_refused(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch, given: object
) -> None:
    monkeypatch.setattr(registry, "answer", lambda *_: (200, given))
    with pytest.raises(RegistryUnreachable, match="answers no list of subjects"):
        a_client(registry).subjects("a")
