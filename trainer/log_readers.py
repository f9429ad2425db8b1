"""How a trainer that has taken a run over reads on: `control` and `tasks`, and samples from the low-water marks."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.payloads import PayloadStore
from rollog.rules.headers import SampleLimits, vocabulary_size
from rollog.rules.late_rewards import KeptRewards, kept_bytes
from rollog.rules.task_names import TasksOfRun
from trainer.buffer.payload_fetches import PayloadFetches
from trainer.buffer.reward_intake import RewardIntake
from trainer.buffer.reward_waits import RewardWaits
from trainer.buffer.sample_buffer import SampleBuffer
from trainer.buffer.sample_stream import SampleStream
from trainer.control import ControlReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from rollog.rules.ledger_state import LedgerState
    from schemas import TrainerEpoch
    from trainer.buffer.sample_stream import Origins
    from trainer.control import KnownTasks
    from trainer.engines.ports import TrainingEngine
    from trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReaders:
    """What a trainer reads, and the buffer that its samples go to. `rewards` is None where all samples bring theirs."""

    control: ControlReader
    stream: SampleStream
    buffer: SampleBuffer
    rewards: RewardIntake | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReaders:
    """Makes the readers of one run; `ledger` is folded to its end, `settings` are those in force there."""

    settings: TrainerSettings
    broker: Broker
    topics: RunTopics
    ledger: LedgerState

    def open(
        self,
        opened: ExitStack,
        *,
        epoch: TrainerEpoch,
        known: KnownTasks,
        engine: TrainingEngine,
        store: WeightsStore,
        clock: Callable[[], float],
    ) -> OpenReaders:
        """All of them; `opened` closes them."""
        control = opened.enter_context(self.control(epoch, known))
        stream = opened.enter_context(self.samples(engine, control, store, clock))
        buffer = self.buffer()
        rewards = self.rewards(buffer)
        opened.enter_context(nullcontext() if rewards is None else rewards)
        return OpenReaders(control=control, stream=stream, buffer=buffer, rewards=rewards)

    def control(self, epoch: TrainerEpoch, known: KnownTasks) -> ControlReader:
        """Who reads `control` from its beginning, and of `tasks` what is not `known`."""
        settings = self.settings
        return ControlReader(
            self.broker,
            self.topics,
            epoch,
            num_task_partitions=settings.broker.max_workers,
            is_issued=TasksOfRun(settings.run_config.seed, settings.groups.num_replicas).includes,
            closed_groups=self.ledger.closed_groups,
            other_writers=settings.groups.other_writers,
            known=known,
        )

    def samples(
        self, engine: TrainingEngine, origins: Origins, store: WeightsStore, clock: Callable[[], float]
    ) -> SampleStream:
        """Who reads samples from the low-water marks on; objects of large ones are in `store`."""
        settings, limits = self.settings, self._sample_limits(engine)
        return SampleStream(
            self.broker,
            self.topics.samples,
            self.ledger.low_water_marks,
            group_id=self.topics.trainer_group,
            limits=limits,
            origins=origins,
            payloads=PayloadFetches(
                PayloadStore(store, self.topics),
                limits,
                max_payload_bytes=settings.broker.max_payload_bytes,
                max_wait_seconds=settings.broker.payload_wait_seconds,
                clock=clock,
            ),
            max_dead_letters_in_a_row=settings.broker.max_dead_letters_in_a_row,
            max_record_bytes=settings.broker.max_record_bytes,
        )

    def buffer(self) -> SampleBuffer:
        """Where samples wait for their group, and those without a reward for theirs."""
        settings = self.settings
        kept = KeptRewards(kept_bytes(settings.groups.num_replicas))
        waits = RewardWaits(settings.reward_deadline_seconds or math.inf, kept)
        return SampleBuffer(self.ledger, settings.groups, settings.freshness, waits)

    def rewards(self, buffer: SampleBuffer) -> RewardIntake | None:
        """Who reads rewards from the mark on; None where all samples bring theirs."""
        if self.settings.reward_deadline_seconds is None:
            return None
        return RewardIntake(self.broker, self.topics.rewards, self.ledger, buffer, self.settings.groups)

    def _sample_limits(self, engine: TrainingEngine) -> SampleLimits:
        settings = self.settings
        # The engine of a closed run is not started, and nothing is read there.
        num_vocabulary = (
            None if self.ledger.is_closed else vocabulary_size(engine.describe().model_config_json)
        )
        return SampleLimits(
            num_partitions=settings.broker.samples_partitions,
            num_replicas=settings.groups.num_replicas,
            temperature=settings.sampling_temperature,
            num_vocabulary=num_vocabulary,
            max_context_tokens=settings.model.max_context_tokens,
            has_late_rewards=settings.reward_deadline_seconds is not None,
        )
