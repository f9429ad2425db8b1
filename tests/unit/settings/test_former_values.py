"""What the manifest of a run means by leaving out a key that is younger than it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.registered_run import settings_of

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import ensure_topics
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import register_run
from rollog.run.creation import create_run_if_missing, manifest_of, specs_of_run
from rollog.settings.settings import Settings, config_sha256

if TYPE_CHECKING:
    from pathlib import Path

young = ("logprob_chunk_tokens", "gradient_dtype", "output_layer_dtype")
"""Keys of [trainer] that runs of earlier releases do not have."""


def older(manifest_json: str) -> str:
    """The manifest without the young keys."""
    sections = json.loads(manifest_json)
    for key in young:
        del sections["trainer"][key]
    return json.dumps(sections)


def test_a_run_from_before_a_key_computes_as_it_did() -> None:
    trainer = Settings.from_manifest(older(Settings().to_manifest())).trainer
    assert [getattr(trainer, key) for key in young] == [0, "model", "model"]
    assert [getattr(Settings().trainer, key) for key in young] == [1024, "float32", "model"]


def test_a_manifest_without_the_section_is_as_old() -> None:
    assert Settings.from_manifest("{}").trainer.logprob_chunk_tokens == 0


def test_what_a_manifest_says_stands() -> None:
    settings = Settings().changed(trainer={"logprob_chunk_tokens": 7, "gradient_dtype": "model"})
    assert Settings.from_manifest(settings.to_manifest()) == settings


def test_an_older_run_is_found_again_with_defaults_and_refuses_what_it_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker, settings = MemoryBroker(), settings_of(tmp_path)
    manifest = manifest_of(settings)
    text = older(manifest.config_json)
    with broker.admin() as admin:
        ensure_topics(admin, specs_of_run(settings))
    register_run(broker, replace(manifest, config_json=text, config_sha256=config_sha256(text)))
    caplog.set_level("INFO")
    found, is_new = create_run_if_missing(broker, settings)
    assert not is_new
    (kept,) = (vars(each)["event_fields"] for each in caplog.records if "keeps what it" in each.message)
    assert kept == {"trainer.logprob_chunk_tokens": 0, "trainer.gradient_dtype": "model"}
    assert Settings.from_manifest(found.config_json).trainer.logprob_chunk_tokens == 0
    with pytest.raises(ConfigError, match=r"trainer\.logprob_chunk_tokens = 0 there, 64 here"):
        create_run_if_missing(broker, settings.changed(trainer={"logprob_chunk_tokens": 64}))
