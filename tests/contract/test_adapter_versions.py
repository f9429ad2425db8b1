"""Versions that hold adapters apart: what an engine makes of them, held against what the trainer computes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save_file
from support.exports import export_of, exported_by
from support.small_training import a_batch
from support.tiny_engine import max_context_tokens, save_versions
from support.training_engines import step_settings, temperature
from transformers import AutoModelForCausalLM

from producers.engines.ports import GenerationRequest
from producers.engines.transformers_engine import TransformersEngine
from producers.engines.vllm import VllmEngine
from producers.engines.vllm_adapters import fits, lora_arguments
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.adapter import Adapter, matrix_names
from rollog.kernel.versions.files import adapter_at
from rollog.kernel.versions.merging import with_merged
from rollog.kernel.weights import WeightsStore
from rollog.settings.training import TrainerConfig
from schemas import SamplingParameters
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from producers.engines.ports import Engine, Generation
    from trainer.engines.ports import TrainingEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

log = logging.getLogger(__name__)
targets = ("q_proj", "down_proj")
sequences = [[5, 0, 22, 7, 7, 13, 1, 20, 2, 9], [3, 8, 8, 21, 11, 4, 19, 6, 15, 14]]
engines = pytest.mark.parametrize("zero_stage", [None, 0, 1, 2, 3], ids=lambda stage: f"stage-{stage}")


def trainer_config(**changes: Any) -> TrainerConfig:
    keys = {"num_minibatches": 2, "lora_rank": 4, "lora_alpha": 6, "lora_targets": targets}
    return TrainerConfig(**(keys | changes))


def trainer_of(
    zero_stage: int | None = None, *, dtype: str = "float32", **changes: Any
) -> DeepSpeedEngine | PlainEngine:
    kind = PlainEngine if zero_stage is None else DeepSpeedEngine
    return kind(
        settings=step_settings,
        trainer=trainer_config(zero_stage=zero_stage or 0, **changes),
        temperature=temperature,
        dtype=dtype,
    )


def published(engine: TrainingEngine, directory: Path, version: int = 0) -> Path:
    """The version that an engine holds, as a reader has it."""
    store = WeightsStore(str(directory / "store"))
    notice = store.publish_tensors(version, engine.export_weights, adapter=engine.describe().adapter)
    return store.fetch(notice, directory)


def adapted(engine: TrainingEngine) -> Mapping[str, Any]:
    """The layers with adapters of a trainer, by their names."""
    model = vars(engine)["_state"].prepared.model
    return {name: layer for name, layer in model.named_modules() if name.endswith(targets)}


def set_adapters(engine: TrainingEngine, share: float) -> None:
    """Give every layer an adapter whose product has `share` of the norm of the layer's weight."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in adapted(engine).values():
            first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            values = torch.randn(second.shape, generator=draw)
            weight = layer.base_layer.weight.float()
            size = layer.scaling["default"] * (values @ first.float()).norm() / weight.norm()
            second.copy_(values * (share / size))


def logprobs(engine: TrainingEngine) -> list[float]:
    return [value for each in sequences for value in engine.sequence_logprobs(each)]


@engines
def test_a_version_has_the_model_as_it_was_and_two_matrices_for_each_layer(
    model_path: str, zero_stage: int | None
) -> None:
    with closing(trainer_of(zero_stage)) as engine:
        engine.start(model_path)
        adapter = engine.describe().adapter
        first = load(exported_by(engine))
        engine.train_step(a_batch(0))
        second = load(exported_by(engine))
    assert adapter is not None
    assert (adapter.rank, adapter.scaling, adapter.rule) == (4, 1.5, "linear")
    assert all(layer.endswith(targets) for layer in adapter.targets)
    model = dict(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).named_parameters())
    assert first.keys() == model.keys() | adapter.tensor_names
    assert len(adapter.tensor_names) == 2 * len(adapter.targets) == 2 * len(targets) * 2
    for name, tensor in model.items():
        assert torch.equal(first[name], tensor)
        assert torch.equal(second[name], tensor)
    for layer in adapter.targets:
        names = matrix_names(layer)
        assert not first[names[1]].any()
        assert all(not torch.equal(first[name], second[name]) for name in names)


@engines
def test_a_trainer_begins_with_such_a_version_where_another_one_ended(
    model_path: str, tmp_path: Path, zero_stage: int | None
) -> None:
    with closing(trainer_of(zero_stage)) as engine:
        engine.start(model_path)
        engine.train_step(a_batch(0))
        path, exported, expected = published(engine, tmp_path, 1), exported_by(engine), logprobs(engine)
    with closing(trainer_of(zero_stage)) as engine:
        engine.start(model_path, path)
        assert exported_by(engine) == exported
        assert logprobs(engine) == expected


def test_merged_in_float32_a_version_is_what_a_merged_run_publishes(model_path: str, tmp_path: Path) -> None:
    exports, paths = {}, {}
    for how in ("adapters", "merged"):
        with closing(trainer_of(lora_published=how, dtype="bfloat16")) as engine:
            engine.start(model_path)
            engine.train_step(a_batch(0))
            exports[how] = exported_by(engine)
            paths[how] = published(engine, tmp_path / how)
    found, expected = load(exports["adapters"]), load(exports["merged"])
    adapter = adapter_at(paths["adapters"])
    assert adapter is not None
    assert adapter_at(paths["merged"]) is None
    merged = dict(with_merged(found.items(), adapter, found.__getitem__))
    assert merged.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in merged.items())


async def of_engine(engine: Engine, *paths: Path) -> list[list[float]]:
    """Log-probabilities of the sequences under each version."""
    await engine.start()
    try:
        return [await of_version(engine, path, version) for version, path in enumerate(paths)]
    finally:
        await engine.close()


async def of_version(engine: Engine, path: Path, version: int) -> list[float]:
    await engine.pause()
    await engine.load_weights(path, version)
    await engine.resume()
    found: list[float] = []
    for at, tokens in enumerate(sequences):
        values = await engine.prompt_logprobs(tokens, f"judged-{version}-{at}")
        assert values is not None
        found += values[1:].tolist()  # nothing comes before the first token
    return found


def distance(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other) == sum(len(each) - 1 for each in sequences)
    return float(np.abs(np.array(one) - np.array(other)).mean())


def engine_of(kind: str, model: Path) -> Engine:
    """In float32, whatever the version is in."""
    if kind == "transformers":
        return TransformersEngine(str(model), max_context_tokens=max_context_tokens)
    pytest.importorskip("vllm", reason="vLLM is not installed")
    return VllmEngine(
        str(model),
        max_context_tokens=max_context_tokens,
        adapter_rank=4,
        engine_args={"enable_lora": False} if kind == "vllm, merged" else {},
    )


def saved_model(directory: Path, *, tied: bool) -> Path:
    """Of a shape that vLLM has kernels for."""
    files = save_versions(directory, tied=tied, num_versions=1)
    save_file(load(files[0].read_bytes()), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    "kind",
    [
        "transformers",
        pytest.param("vllm", marks=pytest.mark.slow),
        pytest.param("vllm, merged", marks=pytest.mark.slow),
    ],
)
def test_in_bfloat16_an_adapter_beside_its_layer_keeps_its_effect_and_a_merged_one_does_not(
    tmp_path: Path, kind: str
) -> None:
    """Sums are in float32 everywhere, so that the rounding of what is published is all that differs."""
    model = saved_model(tmp_path / "model", tied=kind == "vllm")
    shares = (1e-3, 1e-2)
    with closing(trainer_of(dtype="bfloat16")) as trainer:
        trainer.start(str(model))
        paths = [published(trainer, tmp_path, 0)]
        for version, share in enumerate(shares, 1):
            set_adapters(trainer, share)
            paths.append(published(trainer, tmp_path, version))
    expected = []
    with closing(trainer_of()) as trainer:
        trainer.start(str(model), paths[0])
        for share in shares:
            set_adapters(trainer, share)
            expected.append(logprobs(trainer))
    without, *found = asyncio.run(of_engine(engine_of(kind, model), *paths))
    for share, own, wanted in zip(shares, found, expected, strict=True):
        lost = distance(own, wanted) / distance(wanted, without)
        log.info("%s: an adapter of %g of the norm loses %.2f %%", kind, share, 100 * lost)
        assert 0.05 < lost < 1.5 if kind == "vllm, merged" else lost < 0.01


def with_a_layer_that_vllm_does_not_adapt(trainer: TrainingEngine, directory: Path) -> Path:
    tensors, adapter = load(exported_by(trainer)), trainer.describe().adapter
    assert adapter is not None
    layer = "model.embed_tokens"
    num_outputs, num_inputs = tensors[f"{layer}.weight"].shape
    first, second = matrix_names(layer)
    tensors |= {first: torch.ones(4, num_inputs), second: torch.ones(num_outputs, 4)}
    store = WeightsStore(str(directory / "store"))
    adapter = replace(adapter, targets=tuple(sorted((*adapter.targets, layer))))
    return store.fetch(store.publish_tensors(3, export_of(tensors), adapter=adapter), directory)


def test_requests_go_on_through_a_reload_of_an_adapter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = saved_model(tmp_path / "model", tied=False)
    caplog.set_level(logging.DEBUG, logger="rollog.rollout")
    engine = engine_of("vllm", model)
    paths = []
    with closing(trainer_of()) as trainer:
        trainer.start(str(model))
        for version, share in enumerate((0.0, 0.3, 0.6)):
            if share:
                set_adapters(trainer, share)
            paths.append(published(trainer, tmp_path, version))
        elsewhere = with_a_layer_that_vllm_does_not_adapt(trainer, tmp_path)
        num_bytes = sum(tensor.nbytes for tensor in load(exported_by(trainer)).values())

    async def scenario() -> tuple[Generation, list[Any]]:
        await engine.start()
        try:
            await of_version(engine, paths[0], 0)
            await of_version(engine, paths[1], 1)
            task = asyncio.create_task(engine.generate(request))
            await asyncio.sleep(0.05)
            await engine.pause()
            await engine.load_weights(paths[2], 2)
            await engine.resume()
            generation = await task
            tokens = [*request.prompt_token_ids, *generation.token_ids.tolist()]
            after = await engine.prompt_logprobs(tokens, "after")
            await of_version(engine, paths[1], 1)
            refused = r"vLLM could not load .*enable_lora = false in rollout\.engine_args"
            with pytest.raises(WeightsError, match=refused):
                await engine.load_weights(elsewhere, 3)
            await of_version(engine, paths[1], 1)
            return generation, [await engine.prompt_logprobs(tokens, "before"), after]
        finally:
            await engine.close()

    request = GenerationRequest(
        request_id="long",
        prompt_token_ids=sequences[0],
        sampling=SamplingParameters(temperature=1.0, max_tokens=100),
        seed=3,
    )
    generation, under = asyncio.run(scenario())
    assert [span.version for span in generation.spans] == [1, 2]
    for span, logprobs_of in zip(generation.spans, under, strict=True):
        expected = logprobs_of[len(sequences[0]) :]
        assert span.end > span.start
        np.testing.assert_allclose(
            generation.behaviour_logprobs[span.start : span.end],
            expected[span.start : span.end],
            rtol=0,
            atol=1e-4,
        )
    assert np.abs(under[0] - under[1]).max() > 0.01
    fields = [getattr(record, "event_fields", {}) for record in caplog.records]
    passed = [each["num_bytes"] for each in fields if "dense" in each]
    assert 0 < passed[0] < num_bytes
    assert passed[1:3] == [0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM's models import
def test_vllm_is_started_with_its_own_layers_where_it_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    model = str(saved_model(tmp_path / "model", tied=False))
    caplog.set_level(logging.WARNING, logger="rollog.rollout")
    arguments = lora_arguments(model, 9)
    assert arguments["max_lora_rank"] == 16
    assert lora_arguments(model, 0) == {}
    assert lora_arguments(model, 513) == {}
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["NobodysModel"]}')
    assert lora_arguments(model, 8) == {}
    said = [record.message for record in caplog.records if record.name == "rollog.rollout"]
    assert ["none of rank 513" in said[0], "none for this model" in said[1]] == [True, True]
    adapter = Adapter(rank=16, scaling=1.0, targets=("up",))
    assert fits(adapter, arguments)
    for other, given in [
        (None, arguments),
        (adapter, {}),
        (adapter, arguments | {"enable_lora": False}),
        (replace(adapter, rank=17), arguments),
        (replace(adapter, rule="transposed"), arguments),
    ]:
        assert not fits(other, given)
