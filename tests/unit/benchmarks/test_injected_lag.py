"""Runs with an injected lag, and the sampler that feeds them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.small_training import a_batch, make_model

from benchmarks.learning.batch_sampler import Decoding, sample_responses
from benchmarks.learning.cells import Cell, Part, Variant, real_cells
from benchmarks.learning.injected_lag import (
    InjectedLagRun,
    RolloutSource,
    with_recomputed_logprobs,
)
from benchmarks.learning.runs import InjectedRuns, run_name
from rollog.demo.countdown import problems, row
from rollog.demo.model import new_model, save_tokenizer
from rollog.demo.word_models import save_model
from rollog.kernel.errors import ConfigError, DataError
from rollog.settings.generation import DataConfig, EvaluationConfig, RewardConfig, SamplingConfig
from rollog.settings.groups import GroupConfig
from rollog.settings.run import ModelConfig, RunConfig
from rollog.settings.settings import Settings
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from schemas import FinishReason
from trainer.model.policy import Policy, load_model
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.ports import TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from benchmarks.learning.batch_sampler import Response


def longer_is_better(prompt: str, response: str, **fields: object) -> float:
    """A reward with which any policy has something to learn."""
    del prompt, fields
    return len(response) / 100


def never_right(prompt: str, response: str, **fields: object) -> float:
    """A reward without signal."""
    del prompt, response, fields
    return 0.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A small model with random weights."""
    return load_model(make_model(tmp_path_factory.mktemp("model")), None, "float32")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The demo's task with an untrained model and four prompts."""
    directory = tmp_path_factory.mktemp("task")
    save_model(new_model(0), directory)
    save_tokenizer(directory)
    prompts = directory / "prompts.jsonl"
    lines = [json.dumps(row(problem)) for problem in problems(held_out=False)[:4]]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    return Settings(
        run=RunConfig(num_steps=2),
        model=ModelConfig(path=str(directory), max_context_tokens=64),
        data=DataConfig(train=str(prompts), held_out=str(prompts), id_field="id"),
        reward=RewardConfig(function="test_injected_lag:longer_is_better"),
        groups=GroupConfig(groups_per_batch=2, group_size=4),
        sampling=SamplingConfig(max_tokens=8),
        evaluation=EvaluationConfig(num_prompts=4),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        trainer=TrainerConfig(num_minibatches=2),
    )


def draw(
    model: PreTrainedModel, prompts: list[list[int]], *, temperature: float, seed: int = 0
) -> list[Response]:
    decoding = Decoding(max_tokens=12, stop_token_ids=frozenset({1, 2}), temperature=temperature)
    return sample_responses(model, prompts, decoding, torch.Generator().manual_seed(seed))


def as_training_samples(prompts: list[list[int]], responses: list[Response]) -> list[TrainingSample]:
    return [
        TrainingSample(
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            token_ids=response.token_ids,
            behaviour_logprobs=response.logprobs,
            loss_mask=np.ones(len(response.token_ids), dtype=np.uint8),
            advantage=1.0,
        )
        for prompt, response in zip(prompts, responses, strict=True)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_that_the_trainer_computes_for_the_same_weights(
    model: PreTrainedModel, temperature: float
) -> None:
    prompts = [[3 + number % 5, 4, 5 + number % 3][: 2 + number % 2] for number in range(24)]
    responses = draw(model, prompts, temperature=temperature)
    assert len({len(response.token_ids) for response in responses}) > 1, "responses of several lengths"
    batch = collate(as_training_samples(prompts, responses))
    trained = frozen_logprobs(Policy(model, temperature), batch)
    assert torch.allclose(trained, batch.behaviour_logprobs_BR, atol=1e-4)


def test_a_response_ends_with_its_stop_token_or_at_its_most_tokens(model: PreTrainedModel) -> None:
    responses = draw(model, [[3, 4]] * 64, temperature=1.0)
    assert {response.finish_reason for response in responses} == {FinishReason.STOP, FinishReason.LENGTH}
    for response in responses:
        tokens = response.token_ids.tolist()
        assert not {1, 2} & set(tokens[:-1])
        if response.finish_reason is FinishReason.STOP:
            assert tokens[-1] in {1, 2}
        else:
            assert len(tokens) == 12


def test_greedy_responses_do_not_depend_on_the_seed_or_on_the_other_prompts(
    model: PreTrainedModel,
) -> None:
    prompts = [[3, 4], [5, 6, 7], [8, 9]]
    together = draw(model, prompts, temperature=0.0)
    for prompt, response in zip(prompts, together, strict=True):
        alone = draw(model, [prompt], temperature=0.0, seed=9)[0]
        assert alone.token_ids.tolist() == response.token_ids.tolist()
    sampled = draw(model, prompts * 8, temperature=1.0)
    other = draw(model, prompts * 8, temperature=1.0, seed=9)
    assert any(
        one.token_ids.tolist() != another.token_ids.tolist()
        for one, another in zip(sampled, other, strict=True)
    )


def test_taking_the_correction_out_leaves_ratios_of_one(model: PreTrainedModel) -> None:
    batch = a_batch(num_groups=2, group_size=3)
    policy = Policy(model, 1.0)
    found = with_recomputed_logprobs(batch, policy)
    for before, after in zip(batch.samples, found.samples, strict=True):
        trained = frozen_logprobs(policy, collate([after]))[0]
        assert torch.allclose(torch.from_numpy(after.behaviour_logprobs), trained, atol=1e-5)
        same = replace(after, behaviour_logprobs=before.behaviour_logprobs)
        assert TrainingBatch(samples=(same,), plan=()).samples[0].advantage == before.advantage
        assert not np.allclose(after.behaviour_logprobs, before.behaviour_logprobs)


def test_without_lag_every_batch_is_on_policy_and_with_lag_the_first_one(task: Settings) -> None:
    source, algorithm = RolloutSource(task), AlgorithmConfig()
    fresh = InjectedLagRun(source, task, algorithm, lag=0, seed=0).learn(1)
    late = InjectedLagRun(source, task, algorithm, lag=1, seed=0).learn(1)
    uncorrected = InjectedLagRun(source, task, algorithm, lag=1, seed=0, is_corrected=False).learn(1)
    assert fresh.effective_sample_size == pytest.approx(1.0, abs=1e-6)
    assert late.effective_sample_size is not None
    assert late.effective_sample_size < 0.999
    assert uncorrected.effective_sample_size == pytest.approx(1.0, abs=1e-6)
    assert list(fresh.accuracy) == [0, 1, 2]
    assert fresh.accuracy[1] == late.accuracy[1] != fresh.accuracy[0]


def test_a_run_is_repeated_by_its_cell(task: Settings) -> None:
    runs = InjectedRuns(task)
    variant = Variant(part=Part.INJECTED, algorithm="dr_grpo", lag=1)
    first, again = (runs.measure(Cell(variant=variant, seed=3)) for _ in range(2))
    other = runs.measure(Cell(variant=variant, seed=4))
    assert first.accuracy == again.accuracy
    assert first.sampled_accuracy == again.sampled_accuracy
    assert (first.accuracy, first.sampled_accuracy) != (other.accuracy, other.sampled_accuracy)


def test_a_task_without_signal_ends_the_run_with_a_remedy(task: Settings) -> None:
    hopeless = task.changed(
        reward={"function": "test_injected_lag:never_right"}, groups={"groups_per_batch": 1, "group_size": 2}
    )
    run = InjectedLagRun(RolloutSource(hopeless), hopeless, AlgorithmConfig(), lag=0, seed=0)
    with pytest.raises(DataError, match=r"only 0 passed the filter.*filter_zero_signal"):
        run.learn(1)


def test_settings_without_a_dataset_are_refused(task: Settings) -> None:
    with pytest.raises(ConfigError, match=r"data\.held_out is not set"):
        RolloutSource(task.changed(data={"held_out": None}))


def test_the_files_of_the_task_are_used(task: Settings, tmp_path: Path) -> None:
    empty = tmp_path / "none.jsonl"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="no prompts in it"):
        RolloutSource(task.changed(data={"train": str(empty), "held_out": str(empty)}))


def test_every_cell_of_the_real_loop_has_a_name_that_a_run_may_have() -> None:
    cells = list(real_cells(["weighted_topr", "topr"], [0.0, 0.5, 2.0], [0, 1]))
    names = [RunConfig(name=run_name(cell)).name for cell in cells]
    assert names[0] == "learning-weighted-topr-0-0"
    assert len(set(names)) == len(cells)
