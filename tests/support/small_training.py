"""What tests of the trainer share: small models and batches, a naive engine, a run on any broker.

The engine here is the independent reference: sample by sample, without padding, straight from the formulas.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from consumers.ledger import read_ledger
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.rules.seeds import derived_seed
from rollog.settings.groups import FreshnessConfig, GroupConfig
from rollog.settings.run import BrokerConfig, ModelConfig, RunConfig
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from schemas import (
    DatasetEnd,
    DispatcherEpoch,
    Disposition,
    Grant,
    Kind,
    LedgerRecord,
    MicroBatch,
    Prompt,
    RolloutTask,
    Sample,
    SamplingParameters,
    Segment,
    Status,
    Stopped,
    WeightVersion,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)
from schemas.codec import decode_as, encode
from schemas.headers import headers_of
from support.exports import export_of
from support.loss_reference import Response, reference_loss
from support.waiting import wait_until
from trainer.engines.ports import EngineDescription
from trainer.model.policy import load_weights
from trainer.right_of_way import RightOfWay
from trainer.settings import TrainerSettings
from trainer.step.advantages import leave_one_out_advantages
from trainer.step.planning import plan_step
from trainer.step.ports import StepResult, StepSettings, TrainingBatch, TrainingSample
from trainer.step.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.ports import Record as StoredRecord
    from rollog.kernel.versions.tensors import TensorSink
    from schemas.records import Record
    from trainer.checkpoint_files import Digests
    from trainer.loop import Trainer

vocabulary = 23


def make_model(directory: Path, *, tied: bool = True, dropout: float = 0.0) -> str:
    """A tiny causal language model with fixed random weights."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        max_position_embeddings=64,
        attention_dropout=dropout,
    )
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(directory)  # type: ignore[no-untyped-call]
    return str(directory)


def a_training_sample(
    seed: int = 0,
    *,
    prompt_tokens: int = 3,
    response_tokens: int = 4,
    advantage: float = 1.0,
    mask: Sequence[int] | None = None,
) -> TrainingSample:
    draw = np.random.default_rng(seed)
    return TrainingSample(
        prompt_token_ids=int32_array(draw.integers(0, vocabulary, prompt_tokens)),
        token_ids=int32_array(draw.integers(0, vocabulary, response_tokens)),
        behaviour_logprobs=float32_array(-3 + 0.3 * draw.standard_normal(response_tokens)),
        loss_mask=uint8_array(mask if mask is not None else np.ones(response_tokens)),
        advantage=advantage,
    )


def a_batch(
    seed: int = 0,
    *,
    num_groups: int = 4,
    group_size: int = 3,
    num_minibatches: int = 2,
    world_size: int = 1,
    micro_batch_tokens: int = 1000,
    with_rewards: bool = False,
    packing: bool = False,
    num_epochs: int = 1,
) -> TrainingBatch:
    """Advantages are random numbers, or with rewards those that leave-one-out gives."""
    draw = np.random.default_rng(seed)
    groups = [
        [
            a_training_sample(
                int(draw.integers(1 << 30)),
                prompt_tokens=int(draw.integers(1, 5)),
                response_tokens=int(draw.integers(1, 8)),
                advantage=float(draw.standard_normal()),
            )
            for _ in range(group_size)
        ]
        for _ in range(num_groups)
    ]
    plan = plan_step(
        [[sample.num_tokens for sample in group] for group in groups],
        num_minibatches=num_minibatches,
        world_size=world_size,
        micro_batch_tokens=micro_batch_tokens,
        seed=seed,
        packing=packing,
        num_epochs=num_epochs,
    )
    if with_rewards:
        groups = [rewarded(group, number) for number, group in enumerate(groups)]
    return TrainingBatch(samples=tuple(sample for group in groups for sample in group), plan=plan)


def rewarded(group: list[TrainingSample], number: int) -> list[TrainingSample]:
    """One group with the rewards 0, 1, 2 ..."""
    advantages = leave_one_out_advantages(range(len(group))).tolist()
    return [
        replace(sample, group=number, reward=float(reward), advantage=advantage)
        for reward, (sample, advantage) in enumerate(zip(group, advantages, strict=True))
    ]


class NaiveEngine:
    """The training engine port in plain PyTorch, one sample at a time."""

    def __init__(
        self,
        *,
        algorithm: AlgorithmConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        temperature: float = 1.0,
        num_optimizer_steps: int = 100,
    ) -> None:
        self._algorithm = algorithm or AlgorithmConfig()
        self._config = optimizer or OptimizerConfig()
        self.way = RightOfWay()
        self._temperature = temperature
        self._num_optimizer_steps = num_optimizer_steps
        self._steps_taken = 0
        self._model: Any = None
        self._reference: Any = None
        self._optimizer: Any = None

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        if weights_path is not None:
            load_weights(self._model, weights_path)
        self._reference = copy.deepcopy(self._model)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            betas=self._config.betas,
            eps=self._config.epsilon,
            weight_decay=self._config.weight_decay,
        )
        self._steps_taken = 0

    def change_settings(self, settings: StepSettings) -> None:
        self._algorithm = settings.algorithm
        self._config = settings.optimizer
        self._num_optimizer_steps = settings.num_optimizer_steps
        for group in self._optimizer.param_groups:
            group.update(
                betas=self._config.betas, eps=self._config.epsilon, weight_decay=self._config.weight_decay
            )

    def train_step(self, batch: TrainingBatch) -> StepResult:
        with torch.no_grad():
            proximal = [self.logprobs(sample) for sample in batch.samples]
        outcomes = [
            self._optimizer_step(batch, [part for part in batch.plan if part.minibatch == number], proximal)
            for number in sorted({part.minibatch for part in batch.plan})
        ]
        losses, norms, rates = zip(*outcomes, strict=True)
        return StepResult(losses=losses, gradient_norms=norms, learning_rates=rates)

    def _optimizer_step(
        self, batch: TrainingBatch, parts: Sequence[MicroBatch], proximal: Sequence[torch.Tensor]
    ) -> tuple[float, float, float]:
        positions = [position for part in parts for position in part.positions]
        nothing = sum(parameter.sum() for parameter in self._model.parameters()) * 0.0
        loss = nothing + reference_loss(
            self._algorithm,
            [self._response(batch.samples[position], proximal[position]) for position in positions],
        )
        rate = learning_rate(self._steps_taken, self._num_optimizer_steps, self._config)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_gradient_norm)
        self._optimizer.step()
        self._steps_taken += 1
        return loss.item(), norm.item(), rate

    def _response(self, sample: TrainingSample, proximal: torch.Tensor) -> Response:
        kept = torch.from_numpy(np.array(sample.loss_mask)) != 0
        every = self._distributions(self._model, sample)
        with torch.no_grad():
            reference = self._of_tokens(self._distributions(self._reference, sample), sample)
        return Response(
            logprobs=list(self._of_tokens(every, sample)[kept]),
            behaviour=sample.behaviour_logprobs[kept.numpy()].tolist(),
            advantage=sample.advantage,
            proximal=proximal[kept].tolist(),
            reference=reference[kept].tolist(),
            entropies=list(-(every.exp() * every).sum(dim=-1)[kept]),
        )

    def logprobs(self, sample: TrainingSample) -> torch.Tensor:
        """The log-probability of each response token."""
        return self._of_tokens(self._distributions(self._model, sample), sample)

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([list(token_ids)])).logits[0, :-1]
        return tuple(
            log_softmax(logits, dim=-1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
        )

    def _of_tokens(self, every: torch.Tensor, sample: TrainingSample) -> torch.Tensor:
        tokens = torch.from_numpy(sample.token_ids.astype(np.int64))
        return every.gather(1, tokens[:, None])[:, 0]

    def _distributions(self, model: Any, sample: TrainingSample) -> torch.Tensor:
        """The log-probability of every token, for each response position."""
        tokens = torch.from_numpy(
            np.concatenate([sample.prompt_token_ids, sample.token_ids]).astype(np.int64)
        )
        logits = model(input_ids=tokens[None]).logits[0] / self._temperature
        return log_softmax(logits[len(sample.prompt_token_ids) - 1 : -1], dim=-1)

    def export_weights(self, sink: TensorSink | None) -> None:
        if sink is not None:
            export_of(dict(self._model.named_parameters()))(sink)

    def save_checkpoint(self, directory: Path) -> Digests:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "steps": self._steps_taken,
        }
        torch.save(state, directory / "state.pt")
        return {}  # the store takes those that nobody named

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        self.save_checkpoint(directory)
        return dict

    def load_checkpoint(self, directory: Path) -> None:
        state = torch.load(directory / "state.pt", weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps_taken = state["steps"]

    def describe(self) -> EngineDescription:
        return EngineDescription(
            name="naive",
            world_size=1,
            zero_stage=0,
            dtype="float32",
            device="cpu",
            model_config_json=json.dumps({"vocab_size": vocabulary}),
            versions={"torch": torch.__version__},
        )

    def close(self) -> None:
        self._model = self._reference = self._optimizer = None


def trainer_settings(home: Path, topics: RunTopics, model_path: str, **changes: Any) -> TrainerSettings:
    """Two groups of two per step, alpha 1, three steps."""
    values: dict[str, Any] = {
        "run": topics.run,
        "prefix": topics.prefix,
        "seed": 5,
        "home": home,
        "run_config": RunConfig(num_steps=3, close_timeout_seconds=30.0),
        "broker": BrokerConfig(samples_partitions=2),
        "model": ModelConfig(path=model_path),
        "groups": GroupConfig(groups_per_batch=2, group_size=2),
        "freshness": FreshnessConfig(alpha=1.0),
        "sampling_temperature": 1.0,
        "algorithm": AlgorithmConfig(),
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "trainer": TrainerConfig(num_minibatches=2, verdicts_interval_seconds=0.0),
        "weights_uri": str(home / "weights"),
        "manifest_json": "{}",
    }
    return TrainerSettings(**(values | changes))


@dataclass(slots=True)
class FakeRun:
    """The rest of a run: writes what workers and dispatcher would, reads what the trainer wrote."""

    broker: Broker
    topics: RunTopics
    num_partitions: int = 2
    sent: dict[tuple[int, int], Sample] = field(default_factory=dict)
    issued: set[str] = field(default_factory=set)
    is_announced: bool = False

    def create_topics(self) -> None:
        with self.broker.admin() as admin:
            admin.create_topics(
                topic_specs(self.topics, BrokerConfig(samples_partitions=self.num_partitions))
            )

    def ledger(self) -> list[LedgerRecord]:
        return [entry.record for entry in read_ledger(self.broker, self.topics)]

    def send(self, *samples: Sample) -> None:
        """Samples, behind the tasks that order them."""
        self.issue(*samples)
        self.write(*samples)

    def issue(self, *samples: Sample) -> None:
        """The task of each sample, once, under a grant of its worker."""
        self.announce()
        with self.broker.producer(client_id="dispatcher") as producer:
            for sample in samples:
                if sample.task_id not in self.issued:
                    self.issued.add(sample.task_id)
                    producer.send(self.topics.tasks, 0, encode(task_of(sample)))
            producer.flush(10.0)

    def announce(self) -> None:
        """The dispatcher of epoch 1 and its grant for the one worker."""
        if not self.is_announced:
            self.is_announced = True
            self.control(DispatcherEpoch(epoch=1, dispatcher_id="d"))
            self.control(Grant(grant_id="1.1", epoch=1, worker_id="worker-1", partition=0, start_offset=0))

    def write(self, *samples: Sample) -> None:
        """Samples alone."""
        with self.broker.producer(client_id="worker") as producer:
            for sample in samples:
                partition = sample.group_id % self.num_partitions
                delivery = producer.send(
                    self.topics.samples, partition, encode(sample), headers=headers_of(sample)
                )
                self.sent[(partition, delivery.offset(10.0))] = sample

    def send_raw(self, partition: int, value: bytes) -> None:
        with self.broker.producer(client_id="worker") as producer:
            producer.send(self.topics.samples, partition, value).offset(10.0)

    def end_dataset(self, last_group_id: int) -> None:
        self.announce()
        self.control(DatasetEnd(epoch=1, last_group_id=last_group_id))

    def stop(self) -> None:
        self.announce()
        self.control(Stopped(epoch=1))

    def broker_records(self, topic: str) -> list[StoredRecord]:
        """What the first partition of a topic holds."""
        with self.broker.consumer(client_id="test") as consumer:
            return list(read_to_end(consumer, topic, 0))

    def control(self, record: Record) -> None:
        with self.broker.producer(client_id="dispatcher") as producer:
            producer.send(self.topics.control, 0, encode(record), headers=headers_of(record)).offset(10.0)


def task_of(sample: Sample) -> RolloutTask:
    """The task that ordered a sample."""
    return RolloutTask(
        task_id=sample.task_id,
        kind=Kind.TRAINING,
        epoch=1,
        grant_id="1.1",
        group_id=sample.group_id,
        replica=sample.replica,
        attempt=sample.attempt,
        seed=sample.seed,
        prompt=Prompt(prompt_id=sample.prompt_id, text="1 2 3"),
        sampling=SamplingParameters(temperature=1.0, max_tokens=16),
        sample_partition=0,
        reward="",
    )


def a_rollout(
    group: int, replica: int = 0, *, weights_sha256: str, version: int = 0, attempt: int = 0, **changes: Any
) -> Sample:
    """A finished sample made under the given weights, its tokens a function of its identity."""
    draw = np.random.default_rng([group, replica, attempt])
    length = int(draw.integers(1, 7))
    values: dict[str, Any] = {
        "sample_id": sample_id(group, replica, attempt),
        "task_id": f"1.{group * 10_000 + replica * 100 + attempt}",
        "kind": Kind.TRAINING,
        "status": Status.FINISHED,
        "epoch": 1,
        "grant_id": "1.1",
        "worker_id": "worker-1",
        "group_id": group,
        "replica": replica,
        "attempt": attempt,
        "prompt_id": str(group),
        "seed": derived_seed(0, group, replica, attempt),
        "prompt_token_ids": int32_array(draw.integers(0, vocabulary, 3)),
        "token_ids": int32_array(draw.integers(0, vocabulary, length)),
        "behaviour_logprobs": float32_array(-math.log(vocabulary) + 0.2 * draw.standard_normal(length)),
        "loss_mask": uint8_array(np.ones(length)),
        "segments": (Segment(version=version, weights_digest=weights_sha256[:16], start=0, end=length),),
        "reward": float(replica % 2),
    }
    return Sample(**(values | changes))


def a_group(
    group: int, *, weights_sha256: str, version: int = 0, size: int = 2, **changes: Any
) -> list[Sample]:
    """A complete group with signal."""
    return [
        a_rollout(group, replica, weights_sha256=weights_sha256, version=version, **changes)
        for replica in range(size)
    ]


def turn_until(trainer: Trainer, condition: Callable[[], object], message: str) -> None:
    """Turn the loop by hand until the condition holds."""

    def turned() -> object:
        trainer.run_once()
        return condition()

    wait_until(turned, message=message)


def turn_until_version(trainer: Trainer, version: int) -> None:
    turn_until(trainer, lambda: trainer.committed_version >= version, f"version {version}")


def dispositions(run: FakeRun) -> dict[str, Disposition]:
    """By sample id; every record has exactly one."""
    verdicts = [verdict for record in run.ledger() for verdict in record.verdicts]
    places = Counter((verdict.partition, verdict.offset) for verdict in verdicts)
    assert set(places.values()) <= {1}
    return {verdict.sample_id: verdict.disposition for verdict in verdicts}


def notices(broker: Broker, topics: RunTopics) -> list[WeightVersion]:
    with broker.consumer(client_id="test") as consumer:
        return [
            decode_as(WeightVersion, record.value or b"")
            for record in read_to_end(consumer, topics.weights, 0)
        ]


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
