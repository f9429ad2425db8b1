"""What every training engine promises of a value head, held against sample by sample arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from support.exports import exported_by
from support.small_training import a_batch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from schemas import uint8_array
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine
from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample
from trainer.step.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.ports import TrainingEngine

pytestmark = pytest.mark.engine

algorithm = AlgorithmConfig(
    type="ppo", advantage="gae", gae_lambda=0.8, discount=0.97, value_coefficient=0.3, value_clip=0.05
)
optimizer = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_gradient_norm=0.3)
settings = StepSettings(algorithm=algorithm, optimizer=optimizer, num_optimizer_steps=100)
temperature = 0.8
num_steps = 3


def deepspeed(zero_stage: int, *, packing: bool = False, dtype: str = "float32") -> TrainingEngine:
    trainer = TrainerConfig(zero_stage=zero_stage, num_minibatches=2, packing=packing)
    return DeepSpeedEngine(settings=settings, trainer=trainer, temperature=temperature, dtype=dtype)


def plain(*, packing: bool = False, dtype: str = "float32") -> TrainingEngine:
    trainer = TrainerConfig(num_minibatches=2, packing=packing)
    return PlainEngine(settings=settings, trainer=trainer, temperature=temperature, dtype=dtype)


makers: dict[str, Callable[..., TrainingEngine]] = {
    "plain": plain,
    **{f"zero-{stage}": partial(deepspeed, stage) for stage in range(4)},
}


class Reference:
    """PPO with a value head, one sample after the other."""

    def __init__(self, model_path: str) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self.head = torch.nn.Linear(self.model.config.hidden_size, 1)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.zero_()
        self.parameters = [*self.model.parameters(), *self.head.parameters()]
        self.adamw = torch.optim.AdamW(
            self.parameters, betas=optimizer.betas, eps=optimizer.epsilon, weight_decay=0.0
        )
        self.steps_taken = 0

    def outputs(self, sample: TrainingSample) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of the trained tokens."""
        tokens = torch.tensor([*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()])
        found = self.model(input_ids=tokens[None], output_hidden_states=True)
        places = [
            len(sample.prompt_token_ids) + number - 1 for number, kept in enumerate(sample.loss_mask) if kept
        ]
        every = log_softmax(found.logits[0] / temperature, dim=-1)
        values = self.head(found.hidden_states[-1][0])[:, 0]
        return (
            torch.stack([every[place, tokens[place + 1]] for place in places]),
            torch.stack([values[place] for place in places]),
        )

    def train_step(self, batch: TrainingBatch) -> list[float]:
        with torch.no_grad():
            before = [self.outputs(sample)[1].tolist() for sample in batch.samples]
        raw = [
            [
                sum(
                    (algorithm.discount * algorithm.gae_lambda) ** (later - t)
                    * residual(values, rewards_of(sample), later)
                    for later in range(t, len(values))
                )
                for t in range(len(values))
            ]
            for sample, values in zip(batch.samples, before, strict=True)
        ]
        everyone = np.array([each for of_one in raw for each in of_one])
        mean, deviation = everyone.mean(), everyone.std(ddof=1) + 1e-6
        losses = []
        for number in sorted({part.minibatch for part in batch.plan}):
            chosen = [place for part in batch.plan if part.minibatch == number for place in part.positions]
            total: Any = sum(parameter.sum() for parameter in self.parameters) * 0.0
            count = 0
            for place in chosen:
                sample = batch.samples[place]
                logprobs, values = self.outputs(sample)
                mu = sample.behaviour_logprobs[sample.loss_mask != 0].tolist()
                for t in range(len(mu)):
                    advantage = (raw[place][t] - mean) / deviation
                    ratio = (logprobs[t] - mu[t]).exp()
                    cut = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
                    target, old = before[place][t] + raw[place][t], before[place][t]
                    near = old + (values[t] - old).clamp(-algorithm.value_clip, algorithm.value_clip)
                    error = torch.maximum((values[t] - target) ** 2, (near - target) ** 2) / 2
                    total = total - torch.minimum(ratio * advantage, cut * advantage)
                    total = total + algorithm.value_coefficient * error
                    count += 1
            losses.append(self.optimize(total / count))
        return losses

    def optimize(self, loss: Tensor) -> float:
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate(self.steps_taken, 100, optimizer)
        self.adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters, optimizer.max_gradient_norm)
        self.adamw.step()
        self.steps_taken += 1
        return loss.item()


def rewards_of(sample: TrainingSample) -> list[float]:
    """What comes with each trained token."""
    found, turns = [], list(sample.turn_rewards or [sample.reward])
    mask = [*sample.loss_mask.tolist(), 0]
    for place, is_trained in enumerate(mask[:-1]):
        if is_trained:
            is_end_of_turn = not mask[place + 1] if sample.turn_rewards else not any(mask[place + 1 :])
            found.append(turns.pop(0) if is_end_of_turn else 0.0)
    return found


def residual(values: list[float], rewards: list[float], t: int) -> float:
    """What the reward and the next value say about the value at `t`."""
    after = values[t + 1] if t + 1 < len(values) else 0.0
    return rewards[t] + algorithm.discount * after - values[t]


def batch_of(seed: int, **cut: Any) -> TrainingBatch:
    """Rewards, and in every third sample a token in the middle that is not trained, with a reward on either side."""
    batch = a_batch(seed, with_rewards=True, **cut)
    return replace(
        batch,
        samples=tuple(
            in_two_turns(sample) if place % 3 == 0 and len(sample.token_ids) > 2 else sample
            for place, sample in enumerate(batch.samples)
        ),
    )


def in_two_turns(sample: TrainingSample) -> TrainingSample:
    mask = np.ones(len(sample.token_ids))
    mask[1] = 0
    return replace(
        sample, loss_mask=uint8_array(mask), turn_rewards=(0.5, -1.0), turn_advantages=(-0.5, -1.0)
    )


@pytest.fixture(scope="module")
def expected(model_path: str) -> tuple[list[list[float]], dict[str, Tensor]]:
    reference = Reference(model_path)
    losses = [reference.train_step(batch_of(seed)) for seed in range(num_steps)]
    return losses, {name: tensor.detach() for name, tensor in reference.model.named_parameters()}


@pytest.fixture(
    params=[
        name if name in {"plain", "zero-1"} else pytest.param(name, marks=pytest.mark.slow) for name in makers
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[TrainingEngine]:
    made = makers[request.param]()
    yield made
    made.close()


def trained(engine: TrainingEngine, model_path: str, **cut: Any) -> tuple[list[tuple[float, ...]], bytes]:
    engine.start(model_path)
    losses = [engine.train_step(batch_of(seed, **cut)).losses for seed in range(num_steps)]
    return losses, exported_by(engine)


def agree(
    found: tuple[list[tuple[float, ...]], bytes], expected: tuple[list[list[float]], dict[str, Tensor]]
) -> None:
    for losses, of_reference in zip(found[0], expected[0], strict=True):
        assert losses == pytest.approx(of_reference, abs=1e-4)
    weights = load(found[1])
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[1][name], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("micro_batch_tokens", [1000, 25, 1])
def test_steps_give_the_weights_of_the_reference_and_publish_no_value_head(
    engine: TrainingEngine,
    model_path: str,
    expected: tuple[list[list[float]], dict[str, Tensor]],
    micro_batch_tokens: int,
) -> None:
    found = trained(engine, model_path, micro_batch_tokens=micro_batch_tokens)
    agree(found, expected)
    assert not any("value" in name for name in load(found[1]))


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 3)], ids=["plain", "zero-3"])
def test_packed_steps_give_the_weights_of_the_reference(
    maker: Callable[..., TrainingEngine],
    model_path: str,
    expected: tuple[list[list[float]], dict[str, Tensor]],
) -> None:
    engine = maker(packing=True)
    agree(trained(engine, model_path, micro_batch_tokens=40, packing=True), expected)
    engine.close()


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 1)], ids=["plain", "zero-1"])
def test_in_several_passes_values_and_advantages_stay_those_before_the_step(
    maker: Callable[..., TrainingEngine], model_path: str
) -> None:
    reference = Reference(model_path)
    losses = [reference.train_step(batch_of(seed, num_epochs=2)) for seed in range(num_steps)]
    weights = {name: tensor.detach() for name, tensor in reference.model.named_parameters()}
    engine = maker()
    agree(trained(engine, model_path, num_epochs=2), (losses, weights))
    engine.close()


def test_a_checkpoint_holds_the_value_head(engine: TrainingEngine, model_path: str, tmp_path: Path) -> None:
    engine.start(model_path)
    engine.train_step(a_batch(0, with_rewards=True))
    engine.save_checkpoint(tmp_path)
    result = engine.train_step(a_batch(1, with_rewards=True))
    after = exported_by(engine)
    engine.start(model_path)
    engine.load_checkpoint(tmp_path)
    assert engine.train_step(a_batch(1, with_rewards=True)) == result
    assert exported_by(engine) == after


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 1)], ids=["plain", "zero-1"])
def test_in_bfloat16_too(maker: Callable[..., TrainingEngine], model_path: str, tmp_path: Path) -> None:
    engine = maker(dtype="bfloat16")
    test_a_checkpoint_holds_the_value_head(engine, model_path, tmp_path)
    engine.close()


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 1)], ids=["plain", "zero-1"])
def test_values_learn_what_is_to_come(maker: Callable[..., TrainingEngine], model_path: str) -> None:
    engine = maker()
    engine.start(model_path)
    batch = a_batch(0, with_rewards=True)
    found = [engine.train_step(batch).statistics for _ in range(40)]
    engine.close()
    assert found[0]["value_mean"] == 0.0
    assert found[0]["explained_variance"] < 0.1
    assert found[-1]["explained_variance"] > 0.5
    assert found[-1]["value_loss"] < found[0]["value_loss"]


def test_a_value_head_is_not_made_later(model_path: str) -> None:
    without = StepSettings(algorithm=AlgorithmConfig(), optimizer=optimizer, num_optimizer_steps=100)
    engine = PlainEngine(settings=without, trainer=TrainerConfig(), temperature=temperature, dtype="float32")
    engine.start(model_path)
    engine.change_settings(settings)
    with pytest.raises(EngineError, match=r"no value head.*algorithm\.advantage = 'gae'"):
        engine.train_step(a_batch(0, with_rewards=True))
    engine.close()
