"""`rollog train` as every rank of a launcher, on Apache Kafka: rank 0 is killed, and torchrun goes on with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launched_ranks import Launches, free_port, patience_seconds

from schemas import Genesis, LedgerKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def launches(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Launches]:
    made = Launches(kafka_broker, tmp_path, "launched-ranks")
    yield made
    made.close()


def test_a_launcher_s_ranks_train_end_together_and_are_started_again(launches: Launches) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = launches.start("rank-0", RANK="0", LOCAL_RANK="0", **shared)
    second = launches.start("rank-1", RANK="1", LOCAL_RANK="1", **shared)
    launches.send_batch(0, "rank-0")
    launches.sha256_of(1, "rank-0")
    first.kill()
    assert second.wait(60) == 1, launches.said("rank-1")
    assert "rank 0 is gone" in launches.said("rank-1")

    launcher = launches.start(
        "torchrun", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())
    )
    for version in (1, 2):
        launches.send_batch(version, "torchrun")
    launches.sha256_of(3, "torchrun")
    launches.run.stop()
    assert launcher.wait(patience_seconds) == 0, launches.said("torchrun")
    genesis, *_, close = launches.run.ledger()
    assert isinstance(genesis.body, Genesis)
    assert genesis.body.world_size == 2
    assert close.kind is LedgerKind.CLOSE
