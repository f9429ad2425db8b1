"""One run of episodes: real dispatcher, worker and trainer, environments in processes of the product's own pool.

Simulated are the engine, which says in every turn which episode it is, and what environments take their time for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.agentic.lock_step import LockStepPool
from benchmarks.agentic.variants import EpisodeVariant, turn_seconds
from benchmarks.harness.engine_clock import EngineClock
from benchmarks.harness.simulated_run import SimulatedRun
from producers.engines.simulated import SimulatedEngine
from producers.environments.choice import environment_limits, environment_spec
from producers.environments.pool import EnvironmentPool
from producers.rewards.episodes import EpisodeRewards
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer
from producers.rollout.speech import TextSpeech
from rollog.rules.seeds import derived_seed
from rollog.rules.task_names import training_seed
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import DispatchConfig, RewardConfig, RolloutConfig, SamplingConfig
from rollog.settings.groups import GroupConfig
from rollog.settings.run import ModelConfig
from schemas import Prompt

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness.variant import Job
    from producers.engines.ports import GenerationRequest
    from producers.rollout.worker import WorkerParts
    from rollog.kernel.broker.ports import Broker
    from rollog.settings.settings import Settings

_turn_tokens = 12
"""Length of every turn: room for the name of an episode."""
_num_processes = 1
"""The check before a run starts it, so that no start stands in the way of the first batch."""
_run_seed = 0
_most_attempts = 1000
_never_seconds = 1e6


class EpisodeRun(SimulatedRun):
    """The roles of one run of episodes."""

    def __init__(self, job: Job, broker: Broker, home: Path) -> None:
        assert isinstance(job.variant, EpisodeVariant)
        self.variant = job.variant
        self._draws = job.variant.draws(job.seed, job.number)
        self._clock_speed = job.speed
        self.pools: list[EnvironmentPool] = []
        super().__init__(job, broker, home)

    def settings(self) -> Settings:
        """As of the other simulated runs, with an environment in place of a reward function."""
        variant, plain = self.variant, super().settings()
        return plain.model_copy(
            update={
                "model": ModelConfig(
                    path="none", max_context_tokens=(variant.num_turns + 2) * (_turn_tokens + 1)
                ),
                "groups": GroupConfig(
                    groups_per_batch=variant.num_groups,
                    group_size=variant.group_size,
                    redundant_groups=variant.redundant_groups,
                    redundant_replicas=variant.redundant_replicas,
                    filter_zero_signal=False,
                ),
                "sampling": SamplingConfig(max_tokens=_turn_tokens),
                "reward": RewardConfig(),
                "environment": self._environment(),
                "rollout": RolloutConfig(engine="simulated", capacity=variant.slots_per_worker),
                "dispatch": DispatchConfig(
                    prefetch_tasks=0,
                    lease_seconds=30.0,
                    task_timeout_seconds=min(variant.timeout_seconds, _never_seconds) / self._clock_speed,
                ),
            }
        )

    def worker_parts(self, name: str) -> WorkerParts:
        """Those of a worker that plays episodes."""
        rewards = EpisodeRewards()
        return replace(
            super().worker_parts(name),
            engine=SimulatedEngine(
                tokens_per_second=_turn_tokens / turn_seconds,
                max_context_tokens=self.sections.model.max_context_tokens,
                clock=EngineClock(speed=self._clock_speed),
                tokens_of=turn_of,
            ),
            training_rewards=rewards,
            evaluation_rewards=rewards,
            episodes=Episodes(
                pool=self._pool(),
                settings=EpisodeSettings(
                    environment=environment_spec(self.sections.environment), max_turns=self.variant.num_turns
                ),
                speech=lambda: TextSpeech(ByteTokenizer()),
            ),
        )

    def prompt(self, number: int) -> Prompt:
        """An episode whose seed is the number of its group."""
        return Prompt(prompt_id=f"seed-{number}", text="", reward_inputs_json=json.dumps({"seed": number}))

    def _pool(self) -> EnvironmentPool:
        limits = environment_limits(self.sections.environment)
        num_episodes = self.variant.slots_per_worker
        pool = LockStepPool(limits, num_episodes) if self.variant.in_lock_step else EnvironmentPool(limits)
        self.pools.append(pool)
        return pool

    def _environment(self) -> EnvironmentConfig:
        draws = self._draws
        names = ("seed", "number", "num_turns", "mean", "sigma", "slow_share", "slowness", "hang_share")
        return EnvironmentConfig(
            name="benchmarks.agentic.timed_environment:TimedEnvironment",
            parameters={"speed": self._clock_speed, **{name: getattr(draws, name) for name in names}},
            max_turns=self.variant.num_turns,
            num_processes=_num_processes,
            # As many places again, for what is closed while others are opened.
            episodes_per_process=self.variant.slots_per_worker,
            step_timeout_seconds=_never_seconds,
            reset_timeout_seconds=_never_seconds,
            # The stacks of two threads for each episode count, whatever of them is used.
            max_memory_bytes=64 << 30,
        )


def turn_of(request: GenerationRequest) -> bytes:
    """What the policy says in every turn: the name of its episode, padded with spaces."""
    return name_of(request).ljust(_turn_tokens).encode()


def name_of(request: GenerationRequest) -> str:
    """The episode of a request as `GROUP/REPLICA/ATTEMPT`.

    Its first observation says the group, its name the replica, its seed the attempt. Raises ValueError for other seeds.
    """
    opening = request.prompt_token_ids[:_turn_tokens]
    group = int(ByteTokenizer().decode(opening).partition(":")[0])
    rollout, _, turn = request.request_id.rpartition("#")
    replica = int(rollout.rpartition("/")[2])
    for attempt in range(_most_attempts):
        seed = training_seed(_run_seed, group, replica, attempt)
        if derived_seed(seed, int(turn)) == request.seed:
            return f"{group}/{replica}/{attempt}"
    raise ValueError(f"request {request.request_id} has the seed of no attempt")
