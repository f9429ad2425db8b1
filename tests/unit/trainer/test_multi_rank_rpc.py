"""Rank 0 and the others, as threads with engines that compute nothing: who calls what, and what a failure becomes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.exports import exported_by
from support.small_training import a_batch
from support.waiting import max_wait_seconds, wait_until

from rollog.kernel.errors import ConfigError, DataError, EngineError, Superseded
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.multi_rank.connections import Connection
from trainer.engines.multi_rank.follower import serve_calls
from trainer.engines.multi_rank.leader import Followers, MultiRankEngine
from trainer.engines.multi_rank.messages import RankMessage, encode_message
from trainer.engines.multi_rank.ranks import RankGroup, launched_rank
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.kernel.versions.tensors import TensorSink
    from trainer.checkpoint_files import Digests
    from trainer.step.ports import StepResult, TrainingBatch

pytestmark = pytest.mark.engine

loopback = "127.0.0.1"
settings = StepSettings(algorithm=AlgorithmConfig(), optimizer=OptimizerConfig(), num_optimizer_steps=4)


class RecordingEngine(SimulatedTrainingEngine):
    """Says which calls it got, and does in a step what it is told."""

    def __init__(
        self,
        in_step: Callable[[], None] = lambda: None,
        *,
        name: str = "rank 0",
        in_write: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.name = name
        self.in_write = in_write
        self.calls: list[str] = []
        self.made_with: dict[str, Any] = {}
        self.in_step = in_step

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        self.calls.append(f"start {model_path} {weights_path}")
        super().start(model_path)

    def train_step(self, batch: TrainingBatch) -> StepResult:
        self.calls.append(f"train_step {len(batch.samples)}")
        self.in_step()
        return super().train_step(batch)

    def change_settings(self, settings: StepSettings) -> None:
        self.calls.append(f"change_settings {settings.num_optimizer_steps}")

    def save_checkpoint(self, directory: Path) -> Digests:
        self.calls.append(f"save_checkpoint {directory}")
        return {self.name: "at once"}

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        self.calls.append(f"begin_checkpoint {directory}")
        return self._write

    def _write(self) -> Digests:
        self.in_write()
        return {self.name: "beside"}

    def load_checkpoint(self, directory: Path) -> None:
        self.calls.append(f"load_checkpoint {directory}")

    def export_weights(self, sink: TensorSink | None) -> None:
        self.calls.append("export_weights")
        super().export_weights(sink)

    def close(self) -> None:
        self.calls.append("close")


class Job:
    """Three ranks in one process."""

    def __init__(self) -> None:
        self.store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        self.own = RecordingEngine()
        self.others = {rank: RecordingEngine(name=f"rank {rank}") for rank in (1, 2)}
        self.connections: dict[int, Connection] = {}
        self.ended: list[int | Exception] = []
        self.lost = threading.Event()
        self.abandoned = threading.Event()
        self.threads: list[threading.Thread] = []
        self.followers = Followers(
            self.group(0),
            timeout_seconds=20.0,
            on_lost=self.lost.set,
            abandon=self.abandoned.set,
            seconds_to_notice=0.05,
        )
        self.engine = MultiRankEngine(
            self.own,
            self.followers,
            settings=settings,
            trainer=TrainerConfig(),
            temperature=0.5,
            dtype="bfloat16",
        )

    def group(self, rank: int) -> RankGroup:
        return RankGroup(rank=rank, world_size=3, address=loopback, store=self.store)

    def begin(self) -> MultiRankEngine:
        for rank in self.others:
            thread = threading.Thread(target=self._follow, args=(rank,), name=f"rank {rank}")
            thread.start()
            self.threads.append(thread)
        self.engine.start("a-model", Path("some.safetensors"))
        return self.engine

    def _follow(self, rank: int) -> None:
        connection = Connection(self.group(rank).connect(), "rank 0", lambda: None)
        self.connections[rank] = connection

        def make(made_with: dict[str, Any]) -> RecordingEngine:
            self.others[rank].made_with = made_with
            return self.others[rank]

        try:
            self.ended.append(serve_calls(connection, make))
        except Exception as error:  # noqa: BLE001 - what ended a rank is what is asked for
            self.ended.append(error)
        connection.close()

    def end(self) -> None:
        self.followers.close()
        for thread in self.threads:
            thread.join(max_wait_seconds)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.end()


def test_every_rank_makes_every_call_in_order(job: Job) -> None:
    engine = job.begin()
    engine.change_settings(settings)
    engine.train_step(a_batch(0, world_size=3))
    weights = exported_by(engine)
    digests = engine.save_checkpoint(Path("some/where"))
    assert digests == {"rank 0": "at once", "rank 1": "at once", "rank 2": "at once"}
    engine.load_checkpoint(Path("some/where"))
    engine.close()
    job.end()
    assert job.own.calls[:-1] == [
        "start a-model some.safetensors",
        "change_settings 4",
        "train_step 12",
        "export_weights",
        "save_checkpoint some/where",
        "load_checkpoint some/where",
        "close",
    ]
    assert exported_by(job.own) == weights
    for other in job.others.values():
        assert other.calls == job.own.calls[:7]
        assert other.made_with["temperature"] == 0.5
        assert TrainerConfig.model_validate(other.made_with["trainer"]) == TrainerConfig()
    assert job.ended == [0, 0]
    assert not job.lost.is_set()


def test_ranks_write_their_parts_of_a_checkpoint_beside_the_next_step(job: Job) -> None:
    trained = threading.Event()
    for each in (job.own, *job.others.values()):
        each.in_write = lambda: trained.wait(20)
    engine = job.begin()
    write = engine.begin_checkpoint(Path("some/where"))
    engine.train_step(a_batch(0, world_size=3))
    trained.set()
    assert write() == {"rank 0": "beside", "rank 1": "beside", "rank 2": "beside"}
    assert job.others[1].calls[-2:] == ["begin_checkpoint some/where", "train_step 12"]


def test_a_rank_that_cannot_write_its_part_is_named_and_goes_on_with_its_calls(job: Job) -> None:
    def fill() -> None:
        raise OSError(28, "No space left on device")

    job.others[2].in_write = fill
    engine = job.begin()
    write = engine.begin_checkpoint(Path("some/where"))
    with pytest.raises(
        EngineError,
        match=r"rank 2 could not write its part of some/where: DiskFull: .*No space left.*make room",
    ):
        write()
    engine.train_step(a_batch(0, world_size=3))
    job.end()
    assert job.ended == [0, 0]


@pytest.mark.parametrize("how", ["gone", "failed"])
def test_nobody_waits_for_the_part_of_a_rank_that_is_gone_or_has_failed(job: Job, how: str) -> None:
    over = threading.Event()

    def fail() -> None:
        raise MemoryError("no room for activations")

    job.others[2].in_write = lambda: over.wait(20)
    job.others[2].in_step = fail
    engine = job.begin()
    write = engine.begin_checkpoint(Path("some/where"))
    if how == "gone":
        job.connections[2].close()
    else:
        with pytest.raises(EngineError, match="rank 2 failed in train_step"):
            engine.train_step(a_batch(0, world_size=3))
    with pytest.raises(EngineError, match="rank 2"):
        write()
    over.set()


def test_a_rank_that_does_not_end_its_part_in_time_is_named(job: Job) -> None:
    over = threading.Event()
    job.others[1].in_write = lambda: over.wait(20)
    engine = job.begin()
    write = engine.begin_checkpoint(Path("some/where"))
    job.followers._timeout_seconds = 0.1
    with pytest.raises(EngineError, match=r"rank 1 has not written its part of some/where for 0\.1 s"):
        write()
    over.set()


def test_the_others_end_with_the_status_that_rank_0_says(job: Job) -> None:
    job.begin()
    job.followers.parting_status = 75
    job.end()
    assert job.ended == [75, 75]


def test_the_others_end_with_the_status_that_an_error_of_rank_0_means(job: Job) -> None:
    job.begin()
    with pytest.raises(Superseded), job.followers:
        raise Superseded("another trainer")
    job.end()
    assert job.ended == [78, 78]


def test_an_engine_that_is_started_again_is_the_same_one(job: Job) -> None:
    engine = job.begin()
    engine.start("another")
    assert job.others[1].calls == ["start a-model some.safetensors", "start another None"]


def test_what_fails_on_another_rank_is_told_and_ends_everything(job: Job) -> None:
    def fail() -> None:
        raise MemoryError("no room for activations")

    job.others[2] = RecordingEngine(in_step=fail)
    engine = job.begin()
    with pytest.raises(EngineError, match=r"rank 2 failed in train_step: MemoryError: no room"):
        engine.train_step(a_batch(0, world_size=3))
    with pytest.raises(EngineError, match=r"rank 2 failed in train_step"):
        exported_by(engine)
    job.end()
    assert {type(each) for each in job.ended} == {MemoryError, EngineError}


def test_the_first_cause_is_told_where_rank_0_fails_because_of_it(job: Job) -> None:
    def fail() -> None:
        raise MemoryError("no room for activations")

    def break_off() -> None:
        raise RuntimeError("connection closed by peer")

    job.own, job.others[1] = RecordingEngine(in_step=break_off), RecordingEngine(in_step=fail)
    job.engine._engine = job.own
    with pytest.raises(EngineError, match=r"rank 1 failed in train_step: MemoryError"):
        job.begin().train_step(a_batch(0, world_size=3))


def test_an_error_of_rank_0_alone_names_it(job: Job) -> None:
    def break_off() -> None:
        raise RuntimeError("out of memory")

    job.own = RecordingEngine(in_step=break_off)
    job.engine._engine = job.own
    with pytest.raises(EngineError, match=r"rank 0 failed in train_step: RuntimeError: out of memory"):
        job.begin().train_step(a_batch(0, world_size=3))


def test_an_error_that_names_its_remedy_stays_what_it_is(job: Job) -> None:
    def refuse() -> None:
        raise DataError("no such model")

    job.own = RecordingEngine(in_step=refuse)
    job.engine._engine = job.own
    with pytest.raises(DataError, match="no such model"):
        job.begin().train_step(a_batch(0, world_size=3))
    job.engine.close()


def test_a_rank_that_dies_is_noticed_while_nothing_is_called(job: Job) -> None:
    engine = job.begin()
    job.followers.check()
    job.connections[1].close()
    assert job.lost.wait(20)
    wait_until(lambda: job.followers.has_failed)
    with pytest.raises(EngineError, match="rank 1 ended unexpectedly"):
        job.followers.check()
    with pytest.raises(EngineError, match="rank 1 ended unexpectedly"):
        engine.train_step(a_batch(0, world_size=3))
    engine.close()
    job.end()
    assert not job.abandoned.is_set()


def test_rank_0_gives_itself_up_where_it_hangs_without_the_others(job: Job) -> None:
    def hang_without_rank_2() -> None:
        job.connections[2].close()
        job.abandoned.wait(20)

    job.own = RecordingEngine(in_step=hang_without_rank_2)
    job.engine._engine = job.own
    engine = job.begin()
    with suppress(EngineError):  # rank 2 may have made the call already
        engine.train_step(a_batch(0, world_size=3))
    with pytest.raises(EngineError, match="rank 2"):
        job.followers.check()
    assert job.abandoned.is_set()


def test_a_rank_that_says_nothing_in_time_is_named() -> None:
    here, there = _pair()
    connection = Connection(here, "rank 7", lambda: None)
    with pytest.raises(EngineError, match=r"rank 7 has not answered for 0\.01 s"):
        connection.receive(0.01)
    there.close()
    with pytest.raises(EngineError, match="rank 7 is gone"):
        connection.receive(20)
    with pytest.raises(EngineError, match="rank 7 is gone"):
        connection.receive()
    connection.close()


def test_half_a_message_is_none() -> None:
    here, there = _pair()
    connection = Connection(here, "rank 7", lambda: None)
    there.sendall(b"\0\x05\0\0\0\0\0\0\0abc")
    there.close()
    with pytest.raises(EngineError, match="rank 7 is gone"):
        connection.receive(20)
    connection.close()


def test_who_does_not_know_the_token_is_turned_away() -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    group = RankGroup(rank=0, world_size=2, address=loopback, store=store)
    meeting_point = group.open_meeting_point()
    port = int(store.get("rollog/port"))
    with socket.create_connection((loopback, port)) as stranger:
        stranger.sendall(bytes(20))
        assert meeting_point.accept(20) is None
        assert stranger.recv(1) == b""
    with RankGroup(rank=1, world_size=2, address=loopback, store=store).connect():
        arrived = meeting_point.accept(20)
        assert arrived is not None
        assert arrived[0] == 1
        arrived[1].close()
    assert not meeting_point.missing
    meeting_point.close()


def test_a_call_before_there_is_an_engine_is_answered_with_an_error() -> None:
    here, there = _pair()
    rank_0 = Connection(here, "rank 1", lambda: None)
    rank_1 = Connection(there, "rank 0", lambda: None)
    rank_0.send(encode_message(RankMessage(name="train_step")))
    with pytest.raises(EngineError, match="before an engine was made"):
        serve_calls(rank_1, lambda _: SimulatedTrainingEngine())
    assert b"before an engine was made" in rank_0.receive(20)
    rank_0.send(encode_message(RankMessage(name="create")))
    rank_0.send(encode_message(RankMessage(name="dance")))
    with pytest.raises(EngineError, match="'dance' is no call"):
        serve_calls(rank_1, lambda _: SimulatedTrainingEngine())
    rank_0.close()
    rank_1.close()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "7"}, (1, 2, 1)),
        (
            {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
            (3, 4, 1),
        ),
    ],
)
def test_a_launcher_says_who_this_is(
    environment: dict[str, str], expected: tuple[int, int, int] | None
) -> None:
    place = launched_rank(environment)
    assert (None if place is None else (place.rank, place.world_size, place.local_rank)) == expected
    if place is not None:
        assert launched_rank(place.environment()) == place


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "two", "RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "7"},
    ],
)
def test_what_no_launcher_says_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        launched_rank(environment)


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((loopback, 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return here, there
