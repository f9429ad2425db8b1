"""vLLM gets the tensors of a version that it does not hold yet, and computes as after a load of all of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.torch import load_file
from support.exports import export_of
from support.tiny_engine import max_context_tokens, save_versions

from producers.engines.vllm import VllmEngine
from rollog.kernel.errors import WeightsError
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from schemas import Float32Array

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

changed_in_second = (
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.k_proj.bias",
    "model.layers.1.mlp.up_proj.weight",
    "model.norm.weight",
)
embedding = "model.embed_tokens.weight"
token_ids = [2, 9, 4, 33, 17, 5, 21, 30]


def published(directory: Path, versions: list[dict[str, torch.Tensor]]) -> dict[int, Path]:
    store = WeightsStore(str(directory))
    notices = [store.publish_tensors(number, export_of(each)) for number, each in enumerate(versions)]
    return {notice.version: store.fetch(notice, directory) for notice in notices}


def passed_bytes(caplog: pytest.LogCaptureFixture) -> list[int]:
    fields = [getattr(record, "event_fields", {}) for record in caplog.records]
    return [each["num_bytes"] for each in fields if "dense" in each]


@pytest.mark.parametrize("tied", [True, False])
def test_log_probabilities_after_a_partial_load_are_those_of_a_full_one(
    tmp_path: Path, tied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    caplog.set_level(logging.DEBUG, logger="rollog.rollout")
    model = tmp_path / "model"
    files = save_versions(model, tied, num_versions=2)
    first, other = load_file(files[0]), load_file(files[1])
    second = first | {name: other[name] + 0.1 for name in changed_in_second}
    third = second | {name: first[name] for name in changed_in_second[:2]}
    third |= {embedding: other[embedding]}
    paths = published(tmp_path / "store", [first, second, third])
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(files[0].read_bytes()[:-8])
    engine = VllmEngine(str(model), max_context_tokens=max_context_tokens)
    found: dict[str, Float32Array] = {}

    async def load(name: str, version: int) -> None:
        await engine.pause()
        await engine.load_weights(paths[version], version)
        await engine.resume()
        found[name] = await engine.prompt_logprobs(token_ids, name)

    async def scenario() -> None:
        await engine.start()
        try:
            for name, version in {"first": 0, "second": 1, "third": 2, "third again": 2}.items():
                await load(name, version)
            for name, version in {"first, dense": 0, "second, dense": 1, "third, dense": 2}.items():
                with pytest.raises(WeightsError):
                    await engine.load_weights(cut, 9)
                await load(name, version)
        finally:
            await engine.close()

    asyncio.run(scenario())

    for name in ("first", "second", "third"):
        np.testing.assert_array_equal(found[name], found[f"{name}, dense"])
    np.testing.assert_array_equal(found["third"], found["third again"])
    assert np.abs(found["first"] - found["second"]).max() > 0.01
    assert np.abs(found["second"] - found["third"]).max() > 0.01
    whole = sum(tensor.nbytes for tensor in first.values())
    of_second = sum(first[name].nbytes for name in changed_in_second)
    of_third = sum(first[name].nbytes for name in (*changed_in_second[:2], embedding))
    assert passed_bytes(caplog) == [whole, of_second, of_third, 0, whole, whole, whole]
