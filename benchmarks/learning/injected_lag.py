"""One training run with a constant lag, in one process and without a broker.

The product's own parts are what is measured: prompt order, rewards, filter, batch planning, advantages, losses and the
training engine. Only generation is replaced: the rollouts of the step to version v come from the weights of version
max(0, v - 1 - lag), all of them, with the log-probabilities of those weights. A group that is filtered is replaced by
the next prompt, until the batch is full.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load

from benchmarks.harness.exports import file_of
from benchmarks.learning.batch_sampler import Decoding, sample_responses
from benchmarks.learning.cells import Measured
from producers.dispatcher.dataset import PromptOrder, load_prompts
from producers.engines.model_files import end_token_ids
from producers.rewards.functions import call_reward_function, load_reward_function
from producers.rollout.prompts import PromptRenderer, load_tokenizer, reward_fields, reward_prompt
from rollog.kernel.errors import ConfigError, DataError
from rollog.rules.filtering import filter_reason
from schemas import (
    Kind,
    Sample,
    Segment,
    Status,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)
from trainer.engines.plain import PlainEngine
from trainer.model.policy import Policy, load_model, untied_tensors
from trainer.step.batch import check_finite, plan_groups, training_batch
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.planning import step_seed
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from benchmarks.learning.batch_sampler import Response
    from rollog.settings.generation import DataConfig
    from rollog.settings.settings import Settings
    from rollog.settings.training import AlgorithmConfig
    from schemas import Prompt
    from trainer.step.ports import TrainingBatch

most_groups_per_place = 32
"""Groups that may be made for each one that a batch needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """One policy version: its number, its weights file, and what segments carry of that file's sha256."""

    number: int
    weights: bytes
    digest: str


class RolloutSource:
    """Makes scored samples of the task of `settings`. Raises ConfigError, DataError for what it cannot use."""

    def __init__(self, settings: Settings) -> None:
        model, data = settings.model, settings.data
        self.model_path = _named("model.path", model.path)
        self._settings = settings
        self._prompts = _prompts(data, _named("data.train", data.train), data.train_split)
        self._held_out = _prompts(data, _named("data.held_out", data.held_out), data.held_out_split)
        self._function = load_reward_function(_named("reward.function", settings.reward.function))
        self._renderer = PromptRenderer(
            load_tokenizer(model.tokenizer or self.model_path),
            max_context_tokens=model.max_context_tokens,
            cache_size=len(self._prompts) + len(self._held_out),
        )
        self._stop_token_ids = frozenset(end_token_ids(self.model_path))

    def prompt_order(self, seed: int) -> PromptOrder:
        """Which prompt each group gets."""
        return PromptOrder(len(self._prompts), seed, shuffle=self._settings.data.shuffle)

    def groups(
        self,
        model: PreTrainedModel,
        prompt_of: dict[int, int],
        version: _Version,
        generator: torch.Generator,
    ) -> list[list[Sample]]:
        """One group of finished samples for each entry of `prompt_of` (prompt index by group id)."""
        size = self._settings.groups.group_size
        ordered = [
            (group_id, replica, self._prompts[index])
            for group_id, index in prompt_of.items()
            for replica in range(size)
        ]
        temperature = self._settings.sampling.temperature
        responses = self._respond(model, [prompt for *_, prompt in ordered], temperature, generator)
        samples = [
            self._sample(group_id, replica, prompt, response, version)
            for (group_id, replica, prompt), response in zip(ordered, responses, strict=True)
        ]
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def held_out_accuracy(
        self, model: PreTrainedModel, temperature: float, generator: torch.Generator
    ) -> float:
        """Mean reward on the held-out prompts; greedy at temperature 0."""
        prompts = self._held_out[: self._settings.evaluation.num_prompts]
        responses = self._respond(model, prompts, temperature, generator)
        return fmean(
            self._reward(prompt, self._text(response))
            for prompt, response in zip(prompts, responses, strict=True)
        )

    def _respond(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        temperature: float,
        generator: torch.Generator,
    ) -> list[Response]:
        max_tokens = self._settings.sampling.max_tokens
        return sample_responses(
            model,
            [self._renderer.prompt_token_ids(prompt, max_tokens) for prompt in prompts],
            Decoding(max_tokens=max_tokens, stop_token_ids=self._stop_token_ids, temperature=temperature),
            generator,
        )

    def _text(self, response: Response) -> str:
        return self._renderer.text(response.token_ids.tolist())

    def _reward(self, prompt: Prompt, text: str) -> float:
        result = call_reward_function(self._function, reward_prompt(prompt), text, reward_fields(prompt))
        return result.reward

    def _sample(
        self, group_id: int, replica: int, prompt: Prompt, response: Response, version: _Version
    ) -> Sample:
        text = self._text(response)
        num_tokens = len(response.token_ids)
        prompt_token_ids = self._renderer.prompt_token_ids(prompt, self._settings.sampling.max_tokens)
        return Sample(
            sample_id=sample_id(group_id, replica, 0),
            task_id=f"1.{group_id * self._settings.groups.group_size + replica}",
            kind=Kind.TRAINING,
            status=Status.FINISHED,
            epoch=1,
            grant_id="",
            worker_id="",
            group_id=group_id,
            replica=replica,
            attempt=0,
            prompt_id=prompt.prompt_id,
            temperature=self._settings.sampling.temperature,
            prompt_token_ids=int32_array(prompt_token_ids),
            token_ids=response.token_ids,
            behaviour_logprobs=response.logprobs,
            loss_mask=uint8_array([1] * num_tokens),
            segments=(
                Segment(version=version.number, weights_digest=version.digest, start=0, end=num_tokens),
            ),
            response_text=text,
            reward=self._reward(prompt, text),
            finish_reason=response.finish_reason,
        )


class InjectedLagRun:
    """One run of `settings.run.num_steps` steps under `algorithm`, every batch `lag` versions old.

    Without `is_corrected` the behaviour log-probabilities of each batch are replaced by those of the policy that the
    step begins with, as a trainer does that recomputes them. Call `learn` once.
    """

    def __init__(
        self,
        source: RolloutSource,
        settings: Settings,
        algorithm: AlgorithmConfig,
        *,
        lag: int,
        seed: int,
        is_corrected: bool = True,
    ) -> None:
        self._source, self._settings, self._algorithm = source, settings, algorithm
        self._seed, self._is_corrected = seed, is_corrected
        self._versions: deque[_Version] = deque(maxlen=lag + 1)
        self._order = source.prompt_order(seed)
        self._num_groups = 0
        self._engine = PlainEngine(
            settings=StepSettings(
                algorithm=algorithm,
                optimizer=settings.optimizer,
                num_optimizer_steps=settings.run.num_steps * settings.trainer.num_minibatches,
            ),
            trainer=settings.trainer,
            temperature=settings.sampling.temperature,
            dtype=settings.model.dtype,
        )
        # Serves whichever version is needed; the engine's own model is left to the engine.
        self._model = load_model(source.model_path, None, settings.model.dtype)
        self._policy = Policy(self._model, settings.sampling.temperature)

    def learn(self, evaluation_steps: int) -> Measured:
        """Train, and evaluate every `evaluation_steps` steps, before the first and after the last."""
        started = time.monotonic()
        self._engine.start(self._source.model_path)
        try:
            self._keep(0)
            accuracy = {0: self._accuracy()}
            sizes: list[float] = []
            for version in range(1, self._settings.run.num_steps + 1):
                sizes.append(self._step(version))
                if version % evaluation_steps == 0 or version == self._settings.run.num_steps:
                    accuracy[version] = self._accuracy()
            return Measured(
                accuracy=accuracy,
                sampled_accuracy=self._accuracy(self._settings.sampling.temperature),
                effective_sample_size=fmean(sizes),
                seconds=time.monotonic() - started,
            )
        finally:
            self._engine.close()

    def _step(self, version: int) -> float:
        """Make `version`; returns the effective sample size of its batch before the first update."""
        settings = self._settings
        groups = self._collect(version)
        plan = plan_groups(groups, settings.trainer, world_size=1, seed=step_seed(self._seed, version))
        batch = training_batch(groups, plan, self._algorithm, settings.sampling.temperature, version=version)
        if not self._is_corrected:
            self._serve(self._versions[-1])
            batch = with_recomputed_logprobs(batch, self._policy)
        result = self._engine.train_step(batch)
        check_finite(result, version)
        self._keep(version)
        return result.statistics["first_effective_sample_size"]

    def _collect(self, version: int) -> list[list[Sample]]:
        """A full batch of groups that pass the filter, from the oldest version that is kept. Raises DataError."""
        settings = self._settings.groups
        behaviour = self._versions[0]
        self._serve(behaviour)
        generator = torch.Generator().manual_seed(step_seed(self._seed, version))
        batch: list[list[Sample]] = []
        most = self._num_groups + most_groups_per_place * settings.groups_per_batch
        while len(batch) < settings.groups_per_batch:
            if self._num_groups >= most:
                raise DataError(
                    f"of {most_groups_per_place * settings.groups_per_batch} groups for version {version} only "
                    f"{len(batch)} passed the filter, {settings.groups_per_batch} are needed: the policy has nothing "
                    "to learn from; choose other prompts, or set groups.filter_zero_signal = false"
                )
            wanted = settings.groups_per_batch - len(batch)
            ids = range(self._num_groups, self._num_groups + wanted)
            self._num_groups += wanted
            prompt_of = {group_id: self._order.prompt_index(group_id) for group_id in ids}
            groups = self._source.groups(self._model, prompt_of, behaviour, generator)
            batch += [group for group in groups if filter_reason(group, settings) is None]
        return batch

    def _accuracy(self, temperature: float = 0.0) -> float:
        """Of the newest version."""
        self._serve(self._versions[-1])
        generator = torch.Generator().manual_seed(self._seed)
        return self._source.held_out_accuracy(self._model, temperature, generator)

    def _keep(self, version: int) -> None:
        weights = file_of(self._engine.export_weights)
        digest = sha256(weights).hexdigest()[:16]
        self._versions.append(_Version(number=version, weights=weights, digest=digest))

    @torch.no_grad()
    def _serve(self, version: _Version) -> None:
        tensors = load(version.weights)
        for name, tensor in untied_tensors(self._model):
            tensor.copy_(tensors[name])


def with_recomputed_logprobs(batch: TrainingBatch, policy: Policy) -> TrainingBatch:
    """The batch with the log-probabilities of `policy` in the place of those of the record: no correction is left."""
    samples = list(batch.samples)
    for part in batch.plan:
        members = [samples[position] for position in part.positions]
        logprobs_BR = frozen_logprobs(policy, collate(members)).numpy()
        for row, (position, sample) in enumerate(zip(part.positions, members, strict=True)):
            recomputed = float32_array(logprobs_BR[row, : len(sample.token_ids)])
            samples[position] = replace(sample, behaviour_logprobs=recomputed)
    return replace(batch, samples=tuple(samples))


def _named(key: str, value: str | None) -> str:
    if value is None:
        raise ConfigError(f"{key} is not set; name it, or take the demo's settings")
    return value


def _prompts(data: DataConfig, source: str, split: str) -> list[Prompt]:
    return load_prompts(source, split=split, prompt_field=data.prompt_field, id_field=data.id_field)
