"""Two ranks, each a process, on gloo: the weights of one rank, and an end for all when one of them dies."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load
from support import two_ranks_process
from support.exports import content_of, exported_by
from support.recorded_steps import recording_of
from support.small_training import FakeRun, a_group, dispositions, make_model, trainer_settings
from support.two_ranks_process import (
    one_sample,
    refuse_objects_between_ranks,
    step_settings,
    temperature,
    trained,
    with_critic,
    with_divergence,
)
from support.waiting import wait_until

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import EngineError
from rollog.kernel.metrics import Metrics
from rollog.kernel.processes import ChildProcess, exists
from rollog.run.replay_report import replay_line, verdict_line
from rollog.settings.training import TrainerConfig
from schemas import Disposition, Genesis, Step
from trainer.checkpoints import CheckpointStore
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.multi_rank.leader import Followers
from trainer.engines.multi_rank.ranks import own_group
from trainer.recorded.environment import EnvironmentComparison
from trainer.recorded.redo import restore
from trainer.recorded.replay import replay_steps
from trainer.role import engine_of_ranks, run_trainer

if TYPE_CHECKING:
    from trainer.engines.multi_rank.ranks import LaunchedRank
    from trainer.recorded.redo import Recording
    from trainer.recorded.replay import ReplayedStep
    from trainer.settings import TrainerSettings
    from trainer.step.ports import StepResult, StepSettings

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

patience_seconds = 240.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What two ranks gave, in processes that have done nothing else: DeepSpeed counts over the life of a process."""

    directory: Path
    model_path: str

    def weights(self, name: str) -> bytes:
        return (self.directory / f"{name}.safetensors").read_bytes()

    def results(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.directory / f"{name}.json").read_text())
        return found


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(tmp_path_factory.mktemp("few"), "few")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(tmp_path_factory.mktemp("all"), "all")


def answers(directory: Path, which: str) -> Answers:
    model_path = make_model(directory / "model")
    leader = ChildProcess.start(
        [sys.executable, str(Path(two_ranks_process.__file__)), model_path, str(directory), which],
        log_path=directory / "rank-0.log",
        environment=environment(),
    )
    wait_until(lambda: leader.poll() is not None, patience_seconds, "end of rank 0")
    assert leader.poll() == 0, "\n".join(leader.last_lines(40))
    return Answers(directory, model_path)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[StepResult], bytes]:
    model_path = make_model(tmp_path_factory.mktemp("one-rank"))
    return trained(one_rank_engine(), model_path, world_size=1)


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


def follower(place: LaunchedRank, directory: Path) -> ChildProcess:
    return ChildProcess.start(
        [sys.executable, "-m", "trainer.engines.multi_rank.follower"],
        log_path=directory / f"rank-{place.rank}.log",
        environment=place.environment() | environment(),
    )


def one_rank_engine(settings: StepSettings = step_settings, *, lora_rank: int = 0) -> DeepSpeedEngine:
    return DeepSpeedEngine(
        settings=settings,
        trainer=TrainerConfig(num_minibatches=2, lora_rank=lora_rank),
        temperature=temperature,
        dtype="float32",
    )


def distance(one: bytes, other: bytes) -> float:
    return max(float((tensor - load(other)[name]).abs().max()) for name, tensor in load(one).items())


def content_of_model(model_path: str) -> str:
    with closing(one_rank_engine()) as engine:
        engine.start(model_path)
        return content_of(engine)


def test_weights_that_two_ranks_share_out_have_the_digest_of_one_rank(few: Answers) -> None:
    digests = json.loads((few.directory / "digests.json").read_text())
    assert set(digests) == {content_of_model(few.model_path)}


@pytest.mark.slow
def test_weights_have_one_digest_at_every_stage(two_ranks: Answers) -> None:
    digests = json.loads((two_ranks.directory / "digests.json").read_text())
    assert len(digests) == 8
    assert set(digests) == {content_of_model(two_ranks.model_path)}


def test_no_object_is_pickled_between_ranks(few: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert few.weights(
        "zero-3-packed"
    )  # rank 0 trained, exported and exchanged statistics with pickles refused
    refuse_objects_between_ranks(monkeypatch.setattr)
    with closing(one_rank_engine()) as engine:
        engine.start(few.model_path)
        with pytest.raises(AssertionError, match="pickled between ranks"):
            torch.distributed.all_gather_object([None], "what the refusal is for")


@pytest.mark.parametrize("name", ["zero-1-padded", "zero-3-packed"])
def test_two_ranks_give_the_weights_of_one(
    few: Answers, one_rank: tuple[list[StepResult], bytes], name: str
) -> None:
    check_against_one_rank(few, one_rank, name)


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_two_ranks_give_the_weights_of_one_at_every_stage(
    two_ranks: Answers, one_rank: tuple[list[StepResult], bytes], zero_stage: int, layout: str
) -> None:
    check_against_one_rank(two_ranks, one_rank, f"zero-{zero_stage}-{layout}")


def check_against_one_rank(two_ranks: Answers, one_rank: tuple[list[StepResult], bytes], name: str) -> None:
    expected, expected_weights = one_rank
    assert distance(two_ranks.weights(name), expected_weights) < 1e-5
    for result, reference in zip(two_ranks.results(name), expected, strict=True):
        assert result["losses"] == pytest.approx(reference.losses, abs=1e-5)
        assert result["gradient_norms"] == pytest.approx(reference.gradient_norms, rel=1e-4)
        assert result["learning_rates"] == list(reference.learning_rates)
        assert result["statistics"] == pytest.approx(dict(reference.statistics), rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero-1-padded", "bfloat16"])
def test_two_ranks_give_the_same_bytes_again(two_ranks: Answers, name: str) -> None:
    assert two_ranks.weights(name) == two_ranks.weights(f"{name}-again")
    assert two_ranks.results(name) == two_ranks.results(f"{name}-again")


@pytest.mark.slow
def test_ranks_of_bfloat16_export_bfloat16(two_ranks: Answers) -> None:
    assert {tensor.dtype for tensor in load(two_ranks.weights("bfloat16")).values()} == {torch.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_a_divergence_in_the_reward_is_that_of_all_ranks(
    two_ranks: Answers, one_rank: tuple[list[StepResult], bytes], zero_stage: int
) -> None:
    """At stage 3 the reference model, too, is shared out."""
    _, expected = trained(one_rank_engine(), two_ranks.model_path, world_size=1, settings=with_divergence)
    weights = two_ranks.weights(f"divergence-in-reward-{zero_stage}")
    assert distance(weights, expected) < 1e-5 < distance(weights, one_rank[1])


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_values_and_their_mean_are_those_of_all_ranks(two_ranks: Answers, zero_stage: int) -> None:
    expected = trained(one_rank_engine(with_critic), two_ranks.model_path, world_size=1, settings=with_critic)
    check_against_one_rank(two_ranks, expected, f"critic-{zero_stage}")


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_adapters_are_gathered_from_all_ranks(two_ranks: Answers, zero_stage: int) -> None:
    expected = trained(one_rank_engine(lora_rank=4), two_ranks.model_path, world_size=1)
    check_against_one_rank(two_ranks, expected, f"lora-{zero_stage}")


def test_a_checkpoint_of_two_ranks_goes_on_bit_for_bit(few: Answers) -> None:
    check_checkpoints(few, "checkpoint-2")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"checkpoint-{stage}" for stage in range(4)), "checkpoint-1-lora"])
def test_a_checkpoint_of_two_ranks_goes_on_bit_for_bit_at_every_stage(two_ranks: Answers, name: str) -> None:
    check_checkpoints(two_ranks, name)


def check_checkpoints(two_ranks: Answers, name: str) -> None:
    """One that was saved, and one that both ranks wrote beside the next step; each took digests of what it wrote."""
    for how in ("redone", "redone-beside"):
        assert two_ranks.weights(name) == two_ranks.weights(f"{name}-{how}")
        assert two_ranks.results(name) == two_ranks.results(f"{name}-{how}")
    digests = json.loads((two_ranks.directory / f"{name}-digests.json").read_text())
    for how, named in digests.items():
        directory = two_ranks.directory / f"{name}-{how}"
        states = {str(path.relative_to(directory)) for path in directory.rglob("*.pt")}
        assert states == named.keys(), "what is no state of a rank is no file of PyTorch's"
        for file, digest in named.items():
            assert hashlib.sha256((directory / file).read_bytes()).hexdigest() == digest


def test_weights_that_rank_0_reads_are_those_of_all(few: Answers) -> None:
    assert few.weights("zero-3-packed-read") == few.weights("zero-3-packed")


def test_a_rank_without_a_sample_takes_part(few: Answers) -> None:
    alone = one_rank_engine()
    alone.start(few.model_path)
    alone.train_step(one_sample(1))
    assert distance(few.weights("one-sample"), exported_by(alone)) < 1e-5
    alone.close()


def test_the_end_of_rank_0_ends_the_others(tmp_path: Path) -> None:
    group, (place,) = own_group(2)
    child = follower(place, tmp_path)
    meeting_point = group.open_meeting_point()
    arrived = wait_until(lambda: meeting_point.accept(1.0), patience_seconds)
    assert arrived is not None
    arrived[1].close()
    wait_until(lambda: child.poll() is not None, message="end of the follower")
    assert child.poll() == 1
    assert "rank 0 is gone" in "\n".join(child.last_lines())
    meeting_point.close()


def test_a_follower_that_cannot_start_is_shown(tmp_path: Path) -> None:
    group, _ = own_group(2)
    child = ChildProcess.start(
        [sys.executable, "-c", "raise SystemExit('no such module')"], log_path=tmp_path / "rank-1.log"
    )
    followers = Followers(group, children=[child], timeout_seconds=60.0)
    with pytest.raises(EngineError, match=r"a rank did not start; the end of .*\n.*no such module"):
        followers.call("start", lambda: None, lambda _: pytest.fail("nobody is there"))
    followers.close()


@pytest.mark.slow
def test_a_rank_that_hangs_in_a_step_ends_the_step_in_time(tmp_path: Path) -> None:
    settings = trainer_settings(tmp_path, RunTopics("rollog-test", "hanging"), make_model(tmp_path / "model"))
    trainer = settings.trainer.model_copy(update={"rank_timeout_seconds": 60.0})
    settings = replace(settings, trainer=trainer)
    with engine_of_ranks(settings, num_ranks=2, logs=tmp_path) as (engine, _), closing(engine):
        engine.start(settings.model_path)
        engine.train_step(one_sample(2))
        pid = pid_of_follower(tmp_path / "trainer-rank-1.log")
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"in train_step: rank 1 has not answered"):
            engine.train_step(one_sample(2))
    assert not exists(pid)


class Training:
    """The trainer's role in a thread."""

    def __init__(self, settings: TrainerSettings, broker: MemoryBroker) -> None:
        self.failure: Exception | None = None
        self._arguments = (settings, broker, Metrics(), threading.Event())
        self.thread = threading.Thread(target=self._run, name="trainer")
        self.thread.start()

    def _run(self) -> None:
        try:
            run_trainer(*self._arguments)
        except Exception as error:  # noqa: BLE001 - what ended it is what is asked for
            self.failure = error

    def join(self) -> Exception | None:
        self.thread.join(patience_seconds)
        assert not self.thread.is_alive()
        return self.failure


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished run of two ranks in which every sample lay in one partition and a rank was killed."""

    broker: MemoryBroker
    run: FakeRun
    settings: TrainerSettings
    failure: Exception | None
    seconds_to_end: float


def sha256_of_version(run: FakeRun, version: int) -> str | None:
    bodies = [record.body for record in run.ledger() if record.version == version]
    return next((body.weights_sha256 for body in bodies if isinstance(body, Genesis | Step)), None)


def send_to_one_partition(run: FakeRun, training: Training, version: int) -> None:
    """A batch for the step after `version`, all of it in partition 0."""

    def published() -> str | None:
        assert training.failure is None, training.failure
        return sha256_of_version(run, version)

    sha256 = wait_until(published, patience_seconds, f"version {version}") or ""
    for group in (4 * version, 4 * version + 2):
        run.send(*a_group(group, weights_sha256=sha256, version=version))


def pid_of_follower(log: Path) -> int:
    found = re.findall(r"following .*pid=(\d+)", log.read_text())
    return int(found[-1])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    home = tmp_path_factory.mktemp("home")
    topics = RunTopics("rollog-test", "two-ranks")
    broker = MemoryBroker()
    run = FakeRun(broker, topics)
    run.create_topics()
    settings = trainer_settings(home, topics, make_model(home / "model"))
    settings = replace(settings, trainer=settings.trainer.model_copy(update={"num_ranks": 2}))
    training = Training(settings, broker)
    send_to_one_partition(run, training, 0)
    wait_until(lambda: sha256_of_version(run, 1), patience_seconds, "version 1")
    pid = pid_of_follower(home / "runs" / topics.run / "logs" / "trainer-rank-1.log")
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    failure = training.join()
    seconds_to_end = time.monotonic() - killed_at
    training = Training(settings, broker)
    for version in (1, 2):
        send_to_one_partition(run, training, version)
    run.stop()
    assert training.join() is None
    return Recorded(broker, run, settings, failure, seconds_to_end)


@pytest.mark.slow
def test_a_trainer_whose_other_rank_was_killed_ends_and_the_next_one_goes_on(recorded: Recorded) -> None:
    assert isinstance(recorded.failure, EngineError)
    assert "rank 1" in str(recorded.failure)
    assert sha256_of_version(recorded.run, 3)
    log = recorded.settings.home / "runs" / recorded.settings.run / "logs" / "trainer-rank-1.log"
    assert not exists(pid_of_follower(log))


@pytest.mark.slow
def test_samples_in_one_partition_keep_every_rank_busy(recorded: Recorded) -> None:
    places = [
        (verdict.partition, verdict.disposition)
        for record in recorded.run.ledger()
        for verdict in record.verdicts
    ]
    assert set(places) == {(0, Disposition.TRAINED)}
    assert len(dispositions(recorded.run)) == 12
    genesis, *records = recorded.run.ledger()
    assert isinstance(genesis.body, Genesis)
    assert genesis.body.world_size == 2
    for record in records:
        if isinstance(record.body, Step):
            assert {part.rank for part in record.body.plan if part.positions} == {0, 1}


def replayed_on(num_ranks: int, recorded: Recorded, directory: Path) -> tuple[Recording, list[ReplayedStep]]:
    recording = recording_of(recorded.broker, recorded.settings, directory)
    with (
        engine_of_ranks(recorded.settings, num_ranks=num_ranks, logs=directory) as (engine, _),
        closing(engine),
    ):
        checkpoints = CheckpointStore(recorded.settings.checkpoints).complete()
        checkpoint = restore(engine, recording, checkpoints, at_most=0, may_have_other_ranks=True)
        assert checkpoint is None
        return recording, list(replay_steps(engine, recording, range(1, 4)))


@pytest.mark.slow
def test_a_replay_on_as_many_ranks_is_equal(recorded: Recorded, tmp_path: Path) -> None:
    _, steps = replayed_on(2, recorded, tmp_path)
    assert [step.differing for step in steps] == [(), (), ()]
    assert verdict_line(steps, EnvironmentComparison(differences={})).startswith("EQUAL")


@pytest.mark.slow
def test_a_replay_on_other_ranks_tells_distances_and_calls_nothing_equal(
    recorded: Recorded, tmp_path: Path
) -> None:
    recording, steps = replayed_on(1, recorded, tmp_path)
    for step in steps:
        assert "ranks" in step.differing
        assert step.distance is None or step.distance.max_absolute < 1e-4
    assert "DIFFERS in ranks" in replay_line(replace(steps[0], weights_sha256=steps[0].recorded_sha256))
    line = verdict_line(steps, EnvironmentComparison(differences={"ranks": ("2", "1")}))
    assert line.startswith("NOT COMPARED FOR EQUALITY: recorded on 2 rank(s), replayed on 1")
    with (
        engine_of_ranks(recorded.settings, num_ranks=1, logs=tmp_path) as (engine, _),
        closing(engine),
        pytest.raises(EngineError, match=r"trained on 2 rank\(s\), here are 1"),
    ):
        restore(engine, recording, [], at_most=0)
