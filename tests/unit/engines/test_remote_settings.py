"""How a worker finds its server: address, key, certificates."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from support.pretended_server import pretended_server

from producers.engines.choice import make_engine
from producers.engines.remote_calls import InferenceServer, ServerCalls, inference_server
from rollog.kernel.errors import ConfigError
from rollog.run.placement import devices_per_worker, placed_here
from rollog.settings.generation import RolloutConfig
from rollog.settings.run import ModelConfig
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def settings(**keys: Any) -> RolloutConfig:
    return RolloutConfig(**({"engine": "remote", "server_address": "http://gpu:8000"} | keys))


@pytest.mark.parametrize(
    "address", ["http://gpu:8000", "http://gpu:8000/", "http://gpu:8000/v1", "http://gpu:8000/v1/"]
)
def test_the_address_may_end_as_openais_clients_know_it(address: str) -> None:
    assert inference_server(settings(server_address=address)).address == "http://gpu:8000"


@pytest.mark.parametrize("address", ["gpu:8000", "ftp://gpu", "http://", "http://gpu/?a=b", "http://gpu/#a"])
def test_what_is_no_address_of_a_server_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        inference_server(settings(server_address=address))


@pytest.mark.parametrize(
    "address", ["http://me:secret@gpu:8000", "http://secret@gpu", "http://gpu/?api_key=secret"]
)
def test_a_key_in_the_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.server_variable") as raised:
        inference_server(settings(server_address=address))
    assert "secret" not in str(raised.value)


def test_the_key_comes_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER", "from-variable")
    (tmp_path / "key").write_text("from-file\n")
    assert inference_server(settings(server_variable="SERVER")).key == "from-variable"
    assert inference_server(settings(server_file=str(tmp_path / "key"))).key == "from-file"
    assert inference_server(settings()).key is None


@pytest.mark.parametrize("key", ["", "two words", "ä", "a\nb", "a\tb"])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key)
    with pytest.raises(ConfigError, match="holds no key") as raised:
        inference_server(settings(server_file=str(tmp_path / "key")))
    assert "two words" not in str(raised.value)


def test_a_key_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVER", raising=False)
    with pytest.raises(
        ConfigError, match=r"environment variable SERVER .* is not set where the worker starts"
    ):
        inference_server(settings(server_variable="SERVER"))
    with pytest.raises(ConfigError, match=r"server_file = .*missing.* cannot be read: No such file"):
        inference_server(settings(server_file=str(tmp_path / "missing")))


def test_settings_that_name_no_server_or_two_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"needs rollout\.server_address"):
        RolloutConfig(engine="remote")
    with pytest.raises(ValidationError, match="leave one out"):
        settings(server_variable="A", server_file="b")


def test_the_engine_is_chosen_by_name(tmp_path: Path) -> None:
    engine = make_engine(ModelConfig(path=str(tmp_path), max_context_tokens=77), settings(), seed=0)
    assert (engine.name, engine.max_context_tokens) == ("remote", 77)


def test_a_remote_engine_takes_no_device_here_and_serves_one_worker() -> None:
    assert devices_per_worker(settings()) == 0
    whole = Settings().changed(rollout={"engine": "remote", "server_address": "http://gpu:8000"})
    with pytest.raises(ConfigError, match="one server for one worker, and 2 workers"):
        placed_here(whole, 2)


def test_the_key_is_not_in_the_manifest_nor_in_a_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER", "sesame")
    keys = {"engine": "remote", "server_address": "http://gpu:8000", "server_variable": "SERVER"}
    whole = Settings().changed(rollout=keys)
    assert "sesame" not in whole.to_manifest()
    assert "sesame" not in repr(inference_server(whole.rollout))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and the certificate that it signed for loopback."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    command = [
        program,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path


def test_a_certificate_is_checked_against_those_that_are_named(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    async def asked(server: InferenceServer) -> Any:
        calls = ServerCalls(server)
        try:
            return await calls.get("/version")
        finally:
            await calls.close()

    async def scenario() -> None:
        async with pretended_server({}, context=context) as server:
            trusted = str(certificate / "cert.pem")
            assert await asked(server.settings(certificates=trusted)) == {"version": "0.32.0"}
            with pytest.raises(ConfigError, match=r"trusted here.*rollout\.server_certificates"):
                await asked(server.settings())

    asyncio.run(scenario())


def test_a_file_that_holds_no_certificates_is_refused(tmp_path: Path) -> None:
    async def scenario(path: Path) -> None:
        with pytest.raises(ConfigError, match=r"server_certificates = .* is no file of certificates"):
            ServerCalls(InferenceServer(address="https://gpu", certificates=str(path)))

    (tmp_path / "no.pem").write_text("nothing")
    for name in ("no.pem", "missing.pem"):
        asyncio.run(scenario(tmp_path / name))
