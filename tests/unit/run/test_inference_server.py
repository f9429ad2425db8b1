"""What is looked at of an inference server before a run exists."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.pretended_server import PretendedServer, pretended_server

from rollog.kernel.errors import ConfigError
from rollog.run.preflight.servers import inference
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.run.finding import Finding

config = {"model_type": "qwen2", "vocab_size": 40, "hidden_size": 64}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("SERVER", "sesame")
    return tmp_path


def found(directory: Path, **changes: Any) -> list[Finding]:
    """What is found of a server that is changed like this."""

    async def scenario() -> list[Finding]:
        async with pretended_server(config | {"dtype": "float32"}) as server:
            for name, value in changes.items():
                setattr(server, name, value)
            return await asyncio.to_thread(inference, settings(directory, server))

    return asyncio.run(scenario())


def settings(model: Path, server: PretendedServer) -> Settings:
    return Settings().changed(
        model={"path": str(model), "max_context_tokens": 64, "dtype": "float32"},
        sampling={"max_tokens": 8},
        rollout={"engine": "remote", "server_address": server.address, "server_variable": "SERVER"},
    )


def test_a_server_that_fits_is_told_with_its_version_and_weights(model: Path) -> None:
    (finding,) = found(model, mark="rollog-0/1/7")
    assert finding.remedy is None
    assert finding.found.startswith("vLLM 0.32.0 at http://127.0.0.1:")
    assert finding.found.endswith("with a qwen2 for 128 tokens, weights 'rollog-0/1/7'")


def test_a_server_that_takes_weights_from_anybody_is_warned_of(model: Path) -> None:
    (finding,) = found(model, key=None)
    assert not finding.refuses
    assert finding.remedy is not None
    assert "vllm_guard.Guard" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "another"}, "asked with another key"),
        ({"model": config | {"dtype": "float32", "vocab_size": 41}}, "vocab_size is 41 there and 40 here"),
        ({"max_context_tokens": 32}, "--max-model-len 64"),
    ],
)
def test_a_server_that_cannot_serve_the_run_refuses_it(
    model: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        found(model, **changes)


def test_where_nothing_listens_the_run_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be reached.*start the server"):
        inference(settings(model, PretendedServer({}, address="http://127.0.0.1:9")))
