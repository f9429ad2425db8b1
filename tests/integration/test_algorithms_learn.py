"""Every algorithm, from rewards to weights: the share of rewarded tokens rises, with rollouts one version old."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
from support.exports import exported_by
from support.small_training import a_rollout, vocabulary

from rollog.settings.training import AlgorithmConfig, AlgorithmType, OptimizerConfig, TrainerConfig
from schemas import Segment, float32_array, int32_array, uint8_array
from trainer.engines.plain import PlainEngine
from trainer.model.policy import load_model, load_weights
from trainer.step.batch import plan_groups, training_batch
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import Sample

pytestmark = pytest.mark.engine

num_steps, num_groups, group_size, length = 14, 4, 8, 4
trainer = TrainerConfig(num_minibatches=2)


def drawn(model: Any, version: int) -> list[list[Sample]]:
    """Rollouts of the model; the reward is the share of tokens in the lower half of the vocabulary."""
    draw = torch.Generator().manual_seed(version)
    prompts = torch.arange(num_groups).repeat_interleave(group_size)[:, None]
    tokens, logprobs = prompts, []
    for _ in range(length):
        with torch.no_grad():
            every = model(input_ids=tokens, use_cache=False).logits[:, -1].log_softmax(dim=-1)
        chosen = torch.multinomial(every.exp(), 1, generator=draw)
        logprobs.append(every.gather(1, chosen))
        tokens = torch.cat([tokens, chosen], dim=1)
    behaviour = torch.cat(logprobs, dim=1)
    return [
        [
            a_rollout(
                group,
                replica,
                weights_sha256="0" * 16,
                prompt_token_ids=int32_array([group]),
                token_ids=int32_array(tokens[row, 1:]),
                behaviour_logprobs=float32_array(behaviour[row]),
                loss_mask=uint8_array([1] * length),
                segments=(Segment(version=version, weights_digest="0" * 16, start=0, end=length),),
                reward=(tokens[row, 1:] < vocabulary // 2).double().mean().item(),
            )
            for replica, row in enumerate(range(group * group_size, (group + 1) * group_size))
        ]
        for group in range(num_groups)
    ]


@pytest.mark.parametrize("name", [*get_args(AlgorithmType)])
def test_every_algorithm_learns_from_rollouts_one_version_old(
    name: AlgorithmType, model_path: str, tmp_path: Path
) -> None:
    algorithm = AlgorithmConfig(type=name, max_response_tokens=length)
    settings = StepSettings(
        algorithm=algorithm,
        optimizer=OptimizerConfig(learning_rate=1e-2),
        num_optimizer_steps=num_steps * trainer.num_minibatches,
    )
    engine = PlainEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="float32")
    engine.start(model_path)
    actor = load_model(model_path, None, "float32")
    rewards: list[float] = []
    for version in range(1, num_steps + 1):
        newest = exported_by(engine)
        groups = drawn(actor, max(version - 2, 0))
        rewards.append(fmean(sample.reward or 0.0 for group in groups for sample in group))
        plan = plan_groups(groups, trainer, world_size=1, seed=version)
        result = engine.train_step(training_batch(groups, plan, algorithm, 1.0, version=version))
        assert result.statistics["stale_fraction"] == float(version > 1)
        (tmp_path / "weights").write_bytes(newest)
        load_weights(actor, tmp_path / "weights")
    engine.close()
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.15
