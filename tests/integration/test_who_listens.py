"""What listens where: the endpoint of a worker, the ranks of a trainer. The other roles: test_secured_run.py."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from support.certificates import a_certificate
from support.launched_ranks import Launches, free_port
from support.listening import open_to_others, places_of, processes_below

from producers.sessions.listening import Listening
from producers.sessions.process import EndpointProcess, PolicySource
from rollog.kernel.errors import ConfigError
from trainer.engines.multi_rank.ranks import LaunchedRank, launched_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

Place = tuple[str, int]


def places_of_an_endpoint(listening: Listening) -> set[Place]:
    """Where a worker's policy endpoint makes this process and those below it listen."""

    async def served() -> set[Place]:
        before = places_of(os.getpid())
        source = PolicySource(function="support.chat_models:a_policy")
        endpoint = EndpointProcess(source, listening=listening)
        await endpoint.start()
        try:
            return places_of(os.getpid()) - before
        finally:
            await endpoint.close()

    return asyncio.run(served())


def test_the_policy_endpoint_listens_at_one_port_of_loopback() -> None:
    ((host, port),) = places_of_an_endpoint(Listening())
    assert host == "127.0.0.1"
    assert port > 0


def test_the_policy_endpoint_listens_where_agent_host_says_and_nowhere_else(tmp_path: Path) -> None:
    certificate, key = a_certificate(tmp_path)
    place = ("127.0.0.2", free_port())
    listening = Listening(host=place[0], port=place[1], certfile=str(certificate), keyfile=str(key))
    assert places_of_an_endpoint(listening) == {place}


def test_the_policy_endpoint_is_not_opened_to_others_without_a_certificate() -> None:
    with pytest.raises(ConfigError, match=r"listens on loopback only, not on agent\.host"):
        Listening(host="0.0.0.0").bound()


@pytest.mark.engine
def test_ranks_that_a_launcher_started_on_one_machine_meet_at_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    before = places_of(os.getpid())
    place = ("127.0.0.1", free_port())
    group = launched_group(LaunchedRank(rank=0, world_size=2, local_rank=0, address=place[0], port=place[1]))
    meeting_point = group.open_meeting_point()
    found = places_of(os.getpid()) - before
    meeting_point.close()
    assert place in found
    assert len(found) == 2
    assert not open_to_others(found)


@pytest.fixture
def launches(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Launches]:
    made = Launches(kafka_broker, tmp_path, "listening-ranks", trainer={"num_ranks": 2})
    yield made
    made.close()


@pytest.mark.broker
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_trainer_of_several_ranks_listens_on_loopback_alone(launches: Launches) -> None:
    trainer = launches.start("trainer")
    launches.send_batch(0, "trainer")
    launches.sha256_of(1, "trainer")
    processes = processes_below(trainer.pid)
    ranks = [process for process in processes if process.listens]
    assert len(ranks) == 2, [process.command for process in processes]
    assert not open_to_others(places_of(trainer.pid))
