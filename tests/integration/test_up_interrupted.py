"""Ctrl-C during `rollog up`, at several moments: no process stays, no traceback is shown, the log can be read on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.terminal import Terminal
from support.threaded_run import settings_file, small_settings
from support.waiting import wait_until

from consumers.ledger import read_ledger
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.runs import read_runs
from schemas import LedgerKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.session_kafka import SessionKafka


pytestmark = [
    pytest.mark.broker,
    pytest.mark.engine,
    pytest.mark.timeout(300),
]


@pytest.fixture
def terminal(tmp_path: Path, cache_directory: Path, embedded_kafka: SessionKafka) -> Iterator[Terminal]:
    del embedded_kafka  # whose start has fetched the jars
    made = Terminal(tmp_path, cache_directory)
    yield made
    made.close()


@pytest.fixture
def small_run(tmp_path: Path) -> list[str]:
    """Options of a run that would train for long."""
    settings = small_settings(tmp_path, "interrupted", run={"num_steps": 2000})
    return ["--run", "interrupted", "--config", str(settings_file(tmp_path / "run.toml", settings))]


def check_nothing_is_left(terminal: Terminal) -> None:
    wait_until(lambda: not terminal.processes(), 10, f"no process: {terminal.processes()}")
    assert "Traceback" not in terminal.told(), terminal.told()


def check_log_can_be_read(terminal: Terminal, cache_directory: Path) -> int:
    """Newest version in the ledger, which must not be closed."""
    topics = RunTopics("rollog-test", "interrupted")
    with EmbeddedKafka(terminal.home / "kafka", cache_directory) as kafka:
        broker = KafkaBroker(kafka.address)
        assert list(read_runs(broker, topics.prefix)) == [topics.run]
        ledger = [entry.record for entry in read_ledger(broker, topics)]
    assert LedgerKind.CLOSE not in {record.kind for record in ledger}
    return max((record.version for record in ledger), default=-1)


def test_while_the_demo_is_prepared(terminal: Terminal) -> None:
    terminal.up()
    terminal.wait_for("preparing the demo's model")

    terminal.press_ctrl_c()

    assert terminal.status() == 130
    check_nothing_is_left(terminal)
    assert [path.suffix for path in (terminal.home / "cache" / "demo").iterdir()] == [".lock"]


@pytest.mark.slow
def test_while_the_roles_start(terminal: Terminal, small_run: list[str], cache_directory: Path) -> None:
    terminal.up(*small_run)
    terminal.wait_for("role started role=trainer")

    terminal.press_ctrl_c()

    assert terminal.status() == 130
    check_nothing_is_left(terminal)
    check_log_can_be_read(terminal, cache_directory)


@pytest.mark.slow
def test_twice_while_the_roles_start(terminal: Terminal, small_run: list[str]) -> None:
    terminal.up(*small_run)
    terminal.wait_for("role begins role=rollout-0")

    terminal.press_ctrl_c()
    terminal.wait_for("stopping; Ctrl-C again")
    terminal.press_ctrl_c()

    assert terminal.status() == 130
    check_nothing_is_left(terminal)


@pytest.mark.slow
def test_in_the_middle_of_training(terminal: Terminal, small_run: list[str], cache_directory: Path) -> None:
    terminal.up(*small_run)
    terminal.wait_for("step 2/")

    terminal.press_ctrl_c()

    assert terminal.status() == 130
    check_nothing_is_left(terminal)
    assert "run interrupted is not over" in terminal.told()
    assert check_log_can_be_read(terminal, cache_directory) >= 2


@pytest.mark.slow
def test_twice_in_the_middle_of_training(
    terminal: Terminal, small_run: list[str], cache_directory: Path
) -> None:
    terminal.up(*small_run)
    terminal.wait_for("step 2/")

    terminal.press_ctrl_c()
    terminal.wait_for("stopping; Ctrl-C again")
    terminal.press_ctrl_c()

    assert terminal.status() == 130
    check_nothing_is_left(terminal)
    assert check_log_can_be_read(terminal, cache_directory) >= 2
