"""`rollog train`: train one run."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import torch

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError, WeightsStoreSilent, exit_status_expired
from rollog.kernel.logs import get_logger
from rollog.kernel.processes import ChildProcess
from rollog.rules.role_voice import RoleHeartbeats, StartingRole
from schemas import RunRole
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.multi_rank.leader import Followers, MultiRankEngine
from trainer.engines.multi_rank.ranks import launched_group, launched_rank, own_group
from trainer.engines.plain import PlainEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from trainer.engines.multi_rank.ranks import LaunchedRank, RankGroup
    from trainer.engines.ports import TrainingEngine
    from trainer.settings import TrainerSettings

log = get_logger("trainer")


def run_trainer(
    settings: TrainerSettings,
    broker: Broker,
    metrics: Metrics,
    stop: Event,
    *,
    amendment: Mapping[str, object] | None = None,
) -> None:
    """Train until the run is closed or `stop` is set; `amendment` are settings to change first, by dotted key.

    This is rank 0 where there are several: those of a launcher, or `trainer.num_ranks` that are started here.

    A weights store that is silent is not waited for once `stop` is set: the step under way is left, uncommitted.

    Raises Superseded when another trainer takes over, Expired or BrokerTimeout when it has to be started again,
    DataError, WeightsError, LedgerError or EngineError when the run cannot go on.
    """
    place = launched_rank(os.environ)
    starting = StartingRole(RunRole.TRAINER)
    lost = Event()

    def on_lost() -> None:
        lost.set()
        stop.set()

    with (
        RoleHeartbeats(
            broker, RunTopics(settings.prefix, settings.run).workers, lambda: starting.status
        ) as heartbeats,
        engine_of_ranks(
            settings,
            num_ranks=settings.trainer.num_ranks if place is None else place.world_size,
            place=place,
            logs=settings.home / "runs" / settings.run / "logs",
            on_lost=on_lost,
        ) as (engine, followers),
        _leaving_silent_store(stop, lost),
        start_trainer(
            settings, broker, metrics, engine, stop=stop, amendment=amendment, enters=starting.enters
        ) as trainer,
    ):
        heartbeats.speak_for(lambda: trainer.voice.status)
        if followers is not None:
            followers.parting_status = exit_status_expired
        trainer.run(stop)
        if followers is not None:
            followers.check()
            if trainer.ledger.is_closed:
                followers.parting_status = 0


@contextmanager
def _leaving_silent_store(stop: Event, lost: Event) -> Iterator[None]:
    """Within this block a silent store is no failure of a trainer that was told to stop, and has lost no rank."""
    try:
        yield
    except WeightsStoreSilent as silent:
        if lost.is_set() or not stop.is_set():
            raise
        log.warning("left while the weights store is silent; nothing of its step is committed", error=silent)


@contextmanager
def engine_of_ranks(
    settings: TrainerSettings,
    *,
    num_ranks: int,
    logs: Path,
    place: LaunchedRank | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> Iterator[tuple[TrainingEngine, Followers | None]]:
    """The configured engine on so many ranks, not yet started, and the other ranks where there are some.

    The engine is the caller's, who closes it; a trainer does so for the engine that it is given. At the end the other
    ranks are let go, after an error with the status that it means.

    Without `place` under a launcher the other ranks are started here, and end with this process; they log to `logs`.
    Raises ConfigError where the engine cannot have so many ranks.
    """
    if num_ranks == 1:
        yield training_engine(settings), None
        return
    _check_ranks(settings, num_ranks, place)
    others: list[LaunchedRank] = []
    if place is not None:
        group = launched_group(place)
    else:
        group, others = own_group(num_ranks)
    followers = Followers(
        group,
        children=[_start(each, logs) for each in others],
        timeout_seconds=settings.trainer.rank_timeout_seconds,
        on_lost=on_lost,
    )
    with followers:
        yield _multi_rank_engine(settings, group, followers), followers


def training_engine(settings: TrainerSettings, ranks: RankGroup | None = None) -> TrainingEngine:
    """The configured engine as one process has it, not yet started."""
    if settings.trainer.engine == "torch":
        return PlainEngine(
            settings=settings.step_settings,
            trainer=settings.trainer,
            temperature=settings.sampling_temperature,
            dtype=settings.model.dtype,
        )
    return DeepSpeedEngine(
        settings=settings.step_settings,
        trainer=settings.trainer,
        temperature=settings.sampling_temperature,
        dtype=settings.model.dtype,
        ranks=ranks,
    )


def _multi_rank_engine(settings: TrainerSettings, group: RankGroup, followers: Followers) -> MultiRankEngine:
    return MultiRankEngine(
        training_engine(settings, group),
        followers,
        settings=settings.step_settings,
        trainer=settings.trainer,
        temperature=settings.sampling_temperature,
        dtype=settings.model.dtype,
    )


def _check_ranks(settings: TrainerSettings, num_ranks: int, place: LaunchedRank | None) -> None:
    if settings.trainer.engine != "deepspeed":
        raise ConfigError(
            f'trainer.engine = "{settings.trainer.engine}" is one process, here are to be {num_ranks} ranks; '
            'use trainer.engine = "deepspeed", or one rank'
        )
    num_devices = torch.cuda.device_count()
    if place is None and 0 < num_devices < num_ranks:
        raise ConfigError(
            f"trainer.num_ranks = {num_ranks}, but this machine has {num_devices} device(s); use as many ranks, or a "
            "launcher over several machines"
        )


def _start(place: LaunchedRank, logs: Path) -> ChildProcess:
    return ChildProcess.start(
        [sys.executable, "-m", "trainer.engines.multi_rank.follower"],
        log_path=logs / f"trainer-rank-{place.rank}.log",
        environment=place.environment(),
    )
