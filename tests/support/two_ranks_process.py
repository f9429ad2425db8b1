"""Rank 0 of two, `python tests/two_ranks_process.py MODEL DIRECTORY few|all`: trains, and writes what came of it."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from rollog.kernel.processes import ChildProcess
from rollog.kernel.weights import WeightsStore
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from support.exports import content_of, exported_by
from support.small_training import a_batch
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.multi_rank.leader import Followers, MultiRankEngine
from trainer.engines.multi_rank.ranks import own_group
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.engines.multi_rank.ranks import RankGroup
    from trainer.engines.ports import TrainingEngine
    from trainer.step.ports import StepResult, TrainingBatch

num_steps = 5
temperature = 0.8
step_settings = StepSettings(
    algorithm=AlgorithmConfig(),
    optimizer=OptimizerConfig(
        learning_rate=3e-3, warmup_steps=2, weight_decay=0.1, max_gradient_norm=0.3, epsilon=1e-6
    ),
    num_optimizer_steps=2 * num_steps,
)
with_divergence = replace(
    step_settings, algorithm=AlgorithmConfig(type="rloo", kl_coefficient=0.5, max_response_tokens=8)
)
with_critic = replace(
    step_settings, algorithm=AlgorithmConfig(type="ppo", advantage="gae", value_coefficient=0.5)
)


def trained(
    engine: TrainingEngine,
    model_path: str,
    *,
    world_size: int,
    settings: StepSettings = step_settings,
    packing: bool = False,
) -> tuple[list[StepResult], bytes]:
    """Five steps from the beginning, and the weights after them."""
    engine.start(model_path)
    engine.change_settings(settings)
    results = [
        engine.train_step(
            a_batch(seed, world_size=world_size, micro_batch_tokens=25, with_rewards=True, packing=packing)
        )
        for seed in range(num_steps)
    ]
    weights = exported_by(engine)
    engine.close()
    return results, weights


def one_sample(world_size: int) -> TrainingBatch:
    return a_batch(0, num_groups=1, group_size=1, num_minibatches=1, world_size=world_size)


def refuse_objects_between_ranks(replace_in: Callable[[Any, str, object], None] = setattr) -> None:
    """Have all collective operations of torch that pickle objects fail here: with one of two ranks, on both."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an object is pickled between ranks")

    for name in ("_object_to_tensor", "_tensor_to_object"):
        replace_in(torch.distributed.distributed_c10d, name, refuse)


@dataclass(frozen=True, slots=True)
class Cases:
    """Rank 0, and where its answers go."""

    group: RankGroup
    followers: Followers
    model_path: str
    directory: Path

    def engine(
        self,
        zero_stage: int = 1,
        *,
        packing: bool = False,
        dtype: str = "float32",
        settings: StepSettings = step_settings,
        lora_rank: int = 0,
    ) -> MultiRankEngine:
        trainer = TrainerConfig(
            zero_stage=zero_stage, num_minibatches=2, packing=packing, lora_rank=lora_rank
        )
        own = DeepSpeedEngine(
            settings=settings, trainer=trainer, temperature=temperature, dtype=dtype, ranks=self.group
        )
        return MultiRankEngine(
            own,
            self.followers,
            settings=settings,
            trainer=trainer,
            temperature=temperature,
            dtype=dtype,
        )

    def write(self, name: str, results: list[StepResult], weights: bytes) -> None:
        (self.directory / f"{name}.safetensors").write_bytes(weights)
        steps = [asdict(result) | {"statistics": dict(result.statistics)} for result in results]
        (self.directory / f"{name}.json").write_text(json.dumps(steps))

    def train_few(self) -> None:
        self.write("zero-1-padded", *trained(self.engine(), self.model_path, world_size=2))
        found = trained(self.engine(3, packing=True), self.model_path, world_size=2, packing=True)
        self.write("zero-3-packed", *found)
        with closing(self.engine(3, packing=True)) as engine:
            engine.start(self.model_path, self.directory / "zero-3-packed.safetensors")
            self.write("zero-3-packed-read", [], exported_by(engine))
        self._with_one_sample()
        self._with_a_checkpoint(2)
        self._digests(3)

    def train_all(self) -> None:
        for zero_stage in range(4):
            for packing, layout in ((False, "padded"), (True, "packed")):
                engine = self.engine(zero_stage, packing=packing)
                found = trained(engine, self.model_path, world_size=2, packing=packing)
                self.write(f"zero-{zero_stage}-{layout}", *found)
        self.write("zero-1-padded-again", *trained(self.engine(), self.model_path, world_size=2))
        for name in ("bfloat16", "bfloat16-again"):
            self.write(name, *trained(self.engine(dtype="bfloat16"), self.model_path, world_size=2))
        for zero_stage in (1, 3):
            engine = self.engine(zero_stage, settings=with_divergence)
            found = trained(engine, self.model_path, world_size=2, settings=with_divergence)
            self.write(f"divergence-in-reward-{zero_stage}", *found)
            engine = self.engine(zero_stage, settings=with_critic)
            found = trained(engine, self.model_path, world_size=2, settings=with_critic)
            self.write(f"critic-{zero_stage}", *found)
            found = trained(self.engine(zero_stage, lora_rank=4), self.model_path, world_size=2)
            self.write(f"lora-{zero_stage}", *found)
        for zero_stage in range(4):
            self._with_a_checkpoint(zero_stage)
        self._with_a_checkpoint(1, lora_rank=4)
        self._digests(0, 1, 2, 3)

    def _digests(self, *zero_stages: int) -> None:
        """The content digest of the weights as they are at first, and as they are published in shards."""
        found = []
        for zero_stage in zero_stages:
            with closing(self.engine(zero_stage)) as engine:
                engine.start(self.model_path)
                store = WeightsStore(str(self.directory / f"store-{zero_stage}"))
                published = store.publish_tensors(0, engine.export_weights, most_bytes=4000)
                store.check(published)
                found += [published.sha256, content_of(engine)]
        (self.directory / "digests.json").write_text(json.dumps(found))

    def _with_one_sample(self) -> None:
        with closing(self.engine()) as engine:
            engine.start(self.model_path)
            result = engine.train_step(one_sample(2))
            self.write("one-sample", [result], exported_by(engine))

    def _with_a_checkpoint(self, zero_stage: int, *, lora_rank: int = 0) -> None:
        """One that is saved, and one that is written beside the next step."""
        name = f"checkpoint-{zero_stage}" + ("-lora" if lora_rank else "")
        saved, begun = self.directory / f"{name}-saved", self.directory / f"{name}-begun"
        for directory in (saved, begun):
            directory.mkdir()
        with closing(self.engine(zero_stage, lora_rank=lora_rank)) as engine:
            engine.start(self.model_path)
            engine.train_step(a_batch(0, world_size=2))
            digests = engine.save_checkpoint(saved)
            write = engine.begin_checkpoint(begun)
            result = engine.train_step(a_batch(1, world_size=2))
            self.write(name, [result], exported_by(engine))
            with ThreadPoolExecutor(1) as writers:
                ranks = {"saved": dict(digests), "begun": dict(writers.submit(write).result())}
            (self.directory / f"{name}-digests.json").write_text(json.dumps(ranks))
            for directory, how in ((saved, "redone"), (begun, "redone-beside")):
                engine.start(self.model_path)
                engine.load_checkpoint(directory)
                result = engine.train_step(a_batch(1, world_size=2))
                self.write(f"{name}-{how}", [result], exported_by(engine))


def main(model_path: str, directory: Path, which: str) -> None:
    refuse_objects_between_ranks()
    group, (place,) = own_group(2)
    child = ChildProcess.start(
        [sys.executable, "-m", "trainer.engines.multi_rank.follower"],
        log_path=directory / "rank-1.log",
        environment=place.environment(),
    )
    with closing(Followers(group, children=[child], timeout_seconds=60.0)) as followers:
        cases = Cases(group, followers, model_path, directory)
        (cases.train_all if which == "all" else cases.train_few)()
    assert child.poll() == 0, child.last_lines()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
