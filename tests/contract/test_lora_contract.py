"""What every training engine promises of low-rank adapters, held against weights that are merged by hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from support.exports import exported_by
from support.loss_reference import Response, reference_loss
from support.small_training import a_batch
from torch.func import functional_call
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

from rollog.kernel.errors import ConfigError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine
from trainer.model.adapters import adapter_versions, add_adapters
from trainer.model.policy import Policy, load_model
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample
from trainer.step.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.ports import TrainingEngine

pytestmark = pytest.mark.engine

algorithm = AlgorithmConfig()
optimizer = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_gradient_norm=0.3)
settings = StepSettings(algorithm=algorithm, optimizer=optimizer, num_optimizer_steps=100)
temperature = 0.8
targets = ("q_proj", "down_proj")
scaling = 6 / 4


def trainer_config(**changes: Any) -> TrainerConfig:
    values = {"num_minibatches": 2, "lora_rank": 4, "lora_alpha": 6, "lora_targets": targets}
    values["lora_published"] = "merged"
    return TrainerConfig(**(values | changes))


def deepspeed(zero_stage: int, *, dtype: str = "float32", **changes: Any) -> TrainingEngine:
    trainer = trainer_config(zero_stage=zero_stage, **changes)
    return DeepSpeedEngine(settings=settings, trainer=trainer, temperature=temperature, dtype=dtype)


def plain(*, dtype: str = "float32", **changes: Any) -> TrainingEngine:
    trainer = trainer_config(**changes)
    return PlainEngine(settings=settings, trainer=trainer, temperature=temperature, dtype=dtype)


makers: dict[str, Callable[..., TrainingEngine]] = {
    "plain": plain,
    **{f"zero-{stage}": partial(deepspeed, stage) for stage in range(4)},
}


class Reference:
    """The model as it is published, W + (alpha / rank) B A, differentiated with respect to A and B."""

    def __init__(self, model_path: str) -> None:
        adapted: Any = load_model(model_path, None, "float32")
        add_adapters(adapted, trainer_config())
        self.first = {
            name: layer.lora_A["default"].weight.detach().clone()
            for name, layer in adapted.named_modules()
            if name.endswith(targets)
        }
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self.weights = dict(self.model.named_parameters())
        self.pairs = {
            name: (
                first.clone().requires_grad_(),
                torch.zeros(self.weights[f"{name}.weight"].shape[0], 4, requires_grad=True),
            )
            for name, first in self.first.items()
        }
        self.matrices = [matrix for pair in self.pairs.values() for matrix in pair]
        self.adamw = torch.optim.AdamW(
            self.matrices, betas=optimizer.betas, eps=optimizer.epsilon, weight_decay=0.0
        )
        self.steps_taken = 0

    def merged(self) -> dict[str, Tensor]:
        found = {name: weight.detach() for name, weight in self.weights.items()}
        for name in self.pairs:
            found[f"{name}.weight"] = found[f"{name}.weight"] + scaling * self.product(name)
        return found

    def product(self, name: str) -> Tensor:
        first, second = self.pairs[name]
        product: Tensor = second @ first
        return product

    def response(self, sample: TrainingSample) -> Response:
        tokens = np.concatenate([sample.prompt_token_ids, sample.token_ids]).astype(np.int64)
        found: Any = functional_call(
            self.model, self.merged(), kwargs={"input_ids": torch.from_numpy(tokens)[None]}
        )
        every = log_softmax(found.logits[0] / temperature, dim=-1)[len(sample.prompt_token_ids) - 1 : -1]
        chosen = torch.from_numpy(sample.token_ids.astype(np.int64))
        return Response(
            logprobs=list(every.gather(1, chosen[:, None])[:, 0]),
            behaviour=sample.behaviour_logprobs.tolist(),
            advantage=sample.advantage,
        )

    def train_step(self, batch: TrainingBatch) -> list[float]:
        losses = []
        for number in sorted({part.minibatch for part in batch.plan}):
            parts = [part for part in batch.plan if part.minibatch == number]
            loss = reference_loss(
                algorithm,
                [self.response(batch.samples[place]) for part in parts for place in part.positions],
            )
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate(self.steps_taken, 100, optimizer)
            self.adamw.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.matrices, optimizer.max_gradient_norm)
            self.adamw.step()
            self.steps_taken += 1
            losses.append(loss.item())
        return losses


@pytest.fixture(
    params=[
        name if name in {"plain", "zero-1"} else pytest.param(name, marks=pytest.mark.slow) for name in makers
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[TrainingEngine]:
    made = makers[request.param]()
    yield made
    made.close()


def test_a_run_begins_with_the_model_it_was_given(engine: TrainingEngine, model_path: str) -> None:
    engine.start(model_path)
    exported = load(exported_by(engine))
    expected = dict(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).named_parameters())
    assert exported.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in exported.items())


def test_steps_give_the_weights_of_the_reference(engine: TrainingEngine, model_path: str) -> None:
    reference = Reference(model_path)
    engine.start(model_path)
    before = load(exported_by(engine))
    for seed in range(3):
        batch = a_batch(seed, micro_batch_tokens=25)
        assert engine.train_step(batch).losses == pytest.approx(reference.train_step(batch), abs=1e-4)
    weights, merged = load(exported_by(engine)), reference.merged()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, merged[name].detach(), atol=2e-4, rtol=1e-3)
        is_adapted = name.removesuffix(".weight").endswith(targets)
        assert torch.equal(tensor, before[name]) is not is_adapted


def test_a_checkpoint_goes_on_bit_for_bit(engine: TrainingEngine, model_path: str, tmp_path: Path) -> None:
    engine.start(model_path)
    first = load(exported_by(engine))
    engine.train_step(a_batch(0))
    saved = exported_by(engine)
    assert any(not torch.equal(tensor, first[name]) for name, tensor in load(saved).items())
    engine.save_checkpoint(tmp_path)
    result = engine.train_step(a_batch(1))
    after = exported_by(engine)
    engine.start(model_path)
    engine.load_checkpoint(tmp_path)
    assert exported_by(engine) == saved
    assert engine.train_step(a_batch(1)) == result
    assert exported_by(engine) == after


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 1)], ids=["plain", "zero-1"])
@pytest.mark.parametrize(
    "changes",
    [{"dtype": "bfloat16"}, {"activation_checkpointing": True}, {"lora_targets": ()}],
    ids=lambda changes: next(iter(changes)),
)
def test_beside_other_settings(
    maker: Callable[..., TrainingEngine], changes: dict[str, Any], model_path: str, tmp_path: Path
) -> None:
    engine = maker(**changes)
    test_a_checkpoint_goes_on_bit_for_bit(engine, model_path, tmp_path)
    engine.close()


@pytest.mark.parametrize("changes", [{"packing": True}, {"activation_checkpointing": True}], ids=str)
def test_other_ways_to_compute_give_the_same_weights(changes: dict[str, Any], model_path: str) -> None:
    exports = []
    for maker in (plain, partial(plain, **changes)):
        engine = maker()
        engine.start(model_path)
        for seed in range(2):
            engine.train_step(a_batch(seed, packing="packing" in changes))
        exports.append(load(exported_by(engine)))
        engine.close()
    for name, tensor in exports[0].items():
        torch.testing.assert_close(exports[1][name], tensor, atol=1e-4, rtol=1e-3)


def test_in_bfloat16_products_are_added_in_float32(model_path: str) -> None:
    engine = PlainEngine(
        settings=settings, trainer=trainer_config(), temperature=temperature, dtype="bfloat16"
    )
    engine.start(model_path)
    for seed in range(3):
        engine.train_step(a_batch(seed))
    weights = load(exported_by(engine))
    layer = vars(engine)["_state"].prepared.model.model.layers[0].self_attn.q_proj
    base, first, second = (
        matrix.weight.detach().float()
        for matrix in (layer.base_layer, layer.lora_A["default"], layer.lora_B["default"])
    )
    engine.close()
    expected = (base + scaling * (second @ first)).to(torch.bfloat16)
    assert torch.equal(weights["model.layers.0.self_attn.q_proj.weight"], expected.cpu())
    assert engine_versions(lora_rank=4).keys() - engine_versions(lora_rank=0).keys() == {"peft"}


def engine_versions(lora_rank: int) -> dict[str, str]:
    return adapter_versions(trainer_config(lora_rank=lora_rank)) | {"torch": torch.__version__}


def test_published_weights_give_the_log_probabilities_that_are_trained(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    engine.start(model_path)
    for seed in range(3):
        engine.train_step(a_batch(seed))
    file = tmp_path / "weights.safetensors"
    file.write_bytes(exported_by(engine))
    batch = a_batch(7)
    published = Policy(load_model(model_path, file, "float32"), temperature)
    logprobs_BR = frozen_logprobs(published, collate(batch.samples)).numpy()
    fresh = [
        replaced(sample, logprobs_BR[row, : len(sample.token_ids)])
        for row, sample in enumerate(batch.samples)
    ]
    result = engine.train_step(TrainingBatch(samples=tuple(fresh), plan=batch.plan))
    assert result.statistics["first_log_ratio_max"] < 1e-5


def replaced(sample: TrainingSample, behaviour_logprobs: Any) -> TrainingSample:
    return TrainingSample(
        prompt_token_ids=sample.prompt_token_ids,
        token_ids=sample.token_ids,
        behaviour_logprobs=behaviour_logprobs,
        loss_mask=sample.loss_mask,
        advantage=sample.advantage,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("maker", makers.values(), ids=makers.keys())
def test_the_reference_is_the_model_without_its_adapters(
    maker: Callable[..., TrainingEngine], dtype: str, model_path: str
) -> None:
    engine = maker(dtype=dtype)
    engine.start(model_path)
    state = vars(engine)["_state"]
    batch = collate(a_batch(7).samples).to(state.device)
    before = frozen_logprobs(state.reference(), batch)
    engine.train_step(a_batch(0))
    after, trained = frozen_logprobs(state.reference(), batch), frozen_logprobs(state.policy, batch)
    computation = state.prepared.policy.computation
    copy = Policy(load_model(model_path, None, dtype), temperature, computation=computation).to(state.device)
    expected = frozen_logprobs(copy, batch)
    assert torch.equal(before, expected)
    assert torch.equal(after, expected)
    assert not torch.equal(trained, expected)
    engine.close()


@pytest.mark.parametrize("wrong", ["w_pack", "embed_tokens", "norm", "lm_head"])
def test_layers_that_cannot_have_an_adapter_are_named(model_path: str, wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"lora_targets has {wrong}: .*name some of down_proj, .*, q_proj, "
    ):
        plain(lora_targets=("q_proj", wrong)).start(model_path)
