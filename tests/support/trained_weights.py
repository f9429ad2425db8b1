"""A few training steps in a process of their own: `python -m support.trained_weights MODEL LEVEL ALGORITHM`.

Prints a line of JSON: the sha256 of the weights, and what they depended on. Instructions can be pinned only before
anything is computed, so that a test that compares levels needs a process for each.
"""

from __future__ import annotations

import hashlib
import json
import sys

from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from support.exports import exported_by
from support.small_training import a_batch
from trainer.engines.plain import PlainEngine
from trainer.step.ports import StepSettings

num_steps = 3


def main(model: str, level: str, algorithm: str) -> None:
    settings = StepSettings(
        algorithm=AlgorithmConfig.model_validate({"type": algorithm, "max_response_tokens": 8}),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        num_optimizer_steps=2 * num_steps,
    )
    trainer = TrainerConfig.model_validate({"engine": "torch", "num_minibatches": 2, "reproducible": level})
    engine = PlainEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="float32")
    engine.start(model)
    for step in range(num_steps):
        engine.train_step(a_batch(step))
    weights = hashlib.sha256(exported_by(engine)).hexdigest()
    sys.stdout.write(json.dumps({"weights": weights, "facts": dict(engine.describe().versions)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
