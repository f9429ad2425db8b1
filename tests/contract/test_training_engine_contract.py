"""What every training engine promises, whether it learns or only simulates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.exports import exported_by
from support.small_training import a_batch, a_training_sample
from support.training_engines import every_maker, learning_makers, step_settings

from rollog.kernel.errors import EngineError, WeightsError
from rollog.settings.training import AlgorithmConfig
from schemas import MicroBatch
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.step.ports import TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSpec
    from trainer.engines.ports import TrainingEngine

pytestmark = pytest.mark.engine


@pytest.fixture(params=list(every_maker))
def engine(request: pytest.FixtureRequest) -> Iterator[TrainingEngine]:
    made = every_maker[request.param]()
    yield made
    made.close()


def test_the_same_batches_give_the_same_bytes_and_others_give_others(
    engine: TrainingEngine, model_path: str
) -> None:
    exports = []
    for seeds in ((0, 1), (0, 1), (0, 2)):
        engine.start(model_path)
        for seed in seeds:
            engine.train_step(a_batch(seed))
        exports.append(exported_by(engine))
        assert exported_by(engine) == exports[-1]
    assert exports[0] == exports[1] != exports[2]


def test_a_step_tells_of_each_minibatch_and_how_far_off_policy_the_first_was(
    engine: TrainingEngine, model_path: str
) -> None:
    engine.start(model_path)
    result = engine.train_step(a_batch(0, num_minibatches=2, num_epochs=2))
    assert len(result.losses) == len(result.gradient_norms) == len(result.learning_rates) == 4
    assert {"first_effective_sample_size", "first_divergence"} <= result.statistics.keys()


def test_a_checkpoint_goes_on_where_it_was_saved_bit_for_bit(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    engine.start(model_path)
    engine.train_step(a_batch(0))
    saved = exported_by(engine)
    engine.save_checkpoint(tmp_path)
    result = engine.train_step(a_batch(1))
    after = exported_by(engine)

    engine.start(model_path)
    engine.load_checkpoint(tmp_path)
    assert exported_by(engine) == saved
    assert engine.train_step(a_batch(1)) == result
    assert exported_by(engine) == after


def test_a_checkpoint_that_is_written_beside_the_next_step_is_of_the_step_before(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    """Twice, so that the memory of the first copy is used again, by a state with other values."""
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        engine.start(model_path)
        for seed in range(1, len(name)):
            engine.train_step(a_batch(seed))
        saved = exported_by(engine)
        write = engine.begin_checkpoint(directory)
        result = engine.train_step(a_batch(0))
        after = exported_by(engine)
        with ThreadPoolExecutor(1) as writers:
            digests = writers.submit(write).result()

        engine.start(model_path)
        engine.load_checkpoint(directory)
        assert exported_by(engine) == saved
        assert engine.train_step(a_batch(0)) == result
        assert exported_by(engine) == after
        assert digests
        assert digests == digests_of(directory, digests)


def test_what_is_written_of_a_checkpoint_waits_while_weights_are_copied(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    if isinstance(engine, SimulatedTrainingEngine):
        pytest.skip("it has a few bytes, and nobody waits for them")
    engine.start(model_path)
    write = engine.begin_checkpoint(tmp_path)
    with ThreadPoolExecutor(1) as writers:
        sink = StartsMeanwhile(lambda: writers.submit(write))
        engine.export_weights(sink)
        assert sink.started is not None
        assert sink.started.result()


class StartsMeanwhile:
    """Has something begin when the first tensor comes, which does not get done before it gives the tensor back."""

    def __init__(self, begin: Callable[[], Future[Any]]) -> None:
        self._begin = begin
        self.started: Future[Any] | None = None

    def begin(self, table: Sequence[TensorSpec]) -> None:
        del table

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        del spec, data
        if self.started is None:
            self.started = self._begin()
            with pytest.raises(TimeoutError):
                self.started.result(timeout=0.3)


def digests_of(directory: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: sha256((directory / name).read_bytes()).hexdigest() for name in names}


def test_saved_and_begun_checkpoints_are_the_same_files(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    """Not byte for byte: a file of PyTorch's may name tensors in another order."""
    engine.start(model_path)
    engine.train_step(a_batch(0))
    for name in ("saved", "begun"):
        (tmp_path / name).mkdir()
    saved = engine.save_checkpoint(tmp_path / "saved")
    begun = engine.begin_checkpoint(tmp_path / "begun")()
    assert saved.keys() == begun.keys()
    assert saved == digests_of(tmp_path / "saved", saved)
    assert begun == digests_of(tmp_path / "begun", begun)


def failing(batch: TrainingBatch) -> TrainingBatch:
    """The batch, whose last micro-batch has a sample without log-probabilities: what came before has gradients."""
    samples = list(batch.samples)
    last = batch.plan[-1].positions[-1]
    samples[last] = replace(samples[last], behaviour_logprobs=samples[last].behaviour_logprobs[:0])
    return replace(batch, samples=tuple(samples))


@pytest.mark.parametrize("maker", learning_makers.values(), ids=learning_makers)
def test_after_a_step_that_failed_midway_a_checkpoint_goes_on_where_it_was_saved(
    maker: Callable[[], TrainingEngine], model_path: str, tmp_path: Path
) -> None:
    with closing(maker()) as engine:
        engine.start(model_path)
        engine.train_step(a_batch(0))
        engine.save_checkpoint(tmp_path)
        expected = engine.train_step(a_batch(1))
        after = exported_by(engine)
        for seed in (2, 3):
            with pytest.raises(Exception, match="could not broadcast"):
                engine.train_step(failing(a_batch(seed, micro_batch_tokens=20)))
            engine.load_checkpoint(tmp_path)
        assert engine.train_step(a_batch(1)) == expected
        assert exported_by(engine) == after


@pytest.mark.parametrize("maker", learning_makers.values(), ids=learning_makers)
def test_an_engine_that_is_closed_after_a_failed_step_stays_closed(
    maker: Callable[[], TrainingEngine], model_path: str, tmp_path: Path
) -> None:
    with closing(maker()) as engine:
        engine.start(model_path)
        engine.save_checkpoint(tmp_path)
        with pytest.raises(Exception, match="could not broadcast"):
            engine.train_step(failing(a_batch()))
    with pytest.raises(EngineError, match="not started"):
        engine.load_checkpoint(tmp_path)


def test_a_directory_without_a_checkpoint_is_named(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    engine.start(model_path)
    with pytest.raises(EngineError, match=f"{tmp_path} holds no .*remove that directory"):
        engine.load_checkpoint(tmp_path)


def test_weights_from_a_file_are_those_that_are_trained(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    engine.start(model_path)
    engine.train_step(a_batch(0))
    exported = exported_by(engine)
    (tmp_path / "weights.safetensors").write_bytes(exported)
    engine.start(model_path, tmp_path / "weights.safetensors")
    assert exported_by(engine) == exported


def test_a_file_that_holds_no_weights_is_refused(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsError, match=str(tmp_path)):
        engine.start(model_path, tmp_path / "weights.safetensors")


def test_changed_settings_leave_the_weights_as_they_are(engine: TrainingEngine, model_path: str) -> None:
    engine.start(model_path)
    engine.train_step(a_batch(0))
    before = exported_by(engine)
    engine.change_settings(
        replace(step_settings, algorithm=AlgorithmConfig(type="rloo", max_response_tokens=8))
    )
    assert exported_by(engine) == before
    engine.train_step(a_batch(1))
    assert exported_by(engine) != before


def test_a_batch_with_nothing_to_train_is_a_step_without_gradient(
    engine: TrainingEngine, model_path: str
) -> None:
    engine.start(model_path)
    batch = TrainingBatch(
        samples=(a_training_sample(mask=[0, 0, 0, 0]),),
        plan=(MicroBatch(minibatch=0, rank=0, positions=(0,)),),
    )
    result = engine.train_step(batch)
    assert result.losses == (0.0,)
    assert result.gradient_norms == (0.0,)


def test_it_describes_one_and_the_same_engine_each_time(engine: TrainingEngine, model_path: str) -> None:
    engine.start(model_path)
    description = engine.describe()
    engine.train_step(a_batch(0))
    assert engine.describe() == description
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    assert (description.world_size, description.dtype, description.device) == (1, "float32", device)


calls: dict[str, Callable[[TrainingEngine, Path], object]] = {
    "train_step": lambda engine, _: engine.train_step(a_batch(0)),
    "change_settings": lambda engine, _: engine.change_settings(step_settings),
    "export_weights": lambda engine, _: exported_by(engine),
    "save_checkpoint": lambda engine, directory: engine.save_checkpoint(directory),
    "begin_checkpoint": lambda engine, directory: engine.begin_checkpoint(directory),
    "load_checkpoint": lambda engine, directory: engine.load_checkpoint(directory),
    "describe": lambda engine, _: engine.describe(),
}


def test_nothing_can_be_asked_of_it_before_it_is_started_or_after_it_is_closed(
    engine: TrainingEngine, model_path: str, tmp_path: Path
) -> None:
    for name, call in calls.items():
        with pytest.raises(EngineError, match="not started"):
            pytest.fail(f"{name} gave {call(engine, tmp_path)!r}")
    engine.start(model_path)
    engine.close()
    engine.close()
    for name, call in calls.items():
        with pytest.raises(EngineError, match="not started"):
            pytest.fail(f"{name} gave {call(engine, tmp_path)!r}")
