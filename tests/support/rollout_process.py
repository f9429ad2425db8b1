"""A rollout worker as a process of its own: `python -m rollout_process ADDRESS RUN HOME MODEL ENGINE [EXTENSION]`.

EXTENSION is a class that vLLM's process imports.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from producers.rollout.role import run_rollout
from producers.rollout.settings import RolloutSettings
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.metrics import Metrics
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import RewardConfig, RolloutConfig, SamplingConfig
from rollog.settings.run import BrokerConfig, ModelConfig

prefix = "rollog-test"
reward_function = "support.reward_functions_for_tests:reward"


def process_settings(run: str, home: Path, model: Path, engine: str, *extension: str) -> RolloutSettings:
    return RolloutSettings(
        run=run,
        prefix=prefix,
        seed=0,
        name="worker",
        home=home,
        broker=BrokerConfig(samples_partitions=2, max_workers=3),
        model=ModelConfig(path=str(model), max_context_tokens=64),
        sampling=SamplingConfig(max_tokens=16),
        reward=RewardConfig(function=reward_function),
        environment=EnvironmentConfig(),
        rollout=RolloutConfig.model_validate(
            {
                "engine": engine,
                "capacity": 16,
                "heartbeat_seconds": 0.2,
                "engine_args": dict(zip(["worker_extension_cls"], extension, strict=False)),
            }
        ),
        weights_uri=str(home / "weights"),
        num_replicas=8,
    )


def main() -> None:
    address, run, home, model, engine, *extension = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = process_settings(run, Path(home), Path(model), engine, *extension)
    run_rollout(settings, KafkaBroker(address), Metrics(), stop)


if __name__ == "__main__":
    main()
