"""Watching a run to its end: tiny child processes as roles, the log in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from consumers.progress import RunProgress
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.kernel.errors import BrokerError, ChildFailed
from rollog.kernel.processes import exists
from rollog.kernel.signals import StopSignals
from rollog.rules.ledger_state import no_hash, record_hash
from rollog.run.display import Lines
from rollog.run.local_run import BrokerKeeper, Supervision, role_specs
from rollog.run.restart_policy import RestartPolicy
from rollog.run.supervisor import RoleSpec, RoleState, Supervisor
from rollog.run.view import RunFacts
from rollog.run.watching import Outcome, Watcher
from rollog.settings.run import BrokerConfig
from rollog.settings.settings import Settings
from schemas import Close, Genesis, LedgerKind, LedgerRecord
from schemas.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

topics = RunTopics("rollog", "first")
facts = RunFacts(run="first", num_steps=1, broker="memory", state_directory="x")
sleeper = "import time; time.sleep(600)"


def a_broker(*, closed: bool = False) -> MemoryBroker:
    broker = MemoryBroker()
    with broker.admin() as admin:
        admin.create_topics(topic_specs(topics, BrokerConfig()))
    if closed:
        write_closed_ledger(broker)
    return broker


def write_closed_ledger(broker: MemoryBroker) -> None:
    genesis = Genesis(
        manifest_json="{}",
        weights_sha256="0" * 64,
        model_config_json="{}",
        versions={},
        machine="x86_64",
        world_size=1,
        zero_stage=1,
        dtype="float32",
    )
    first = a_record(LedgerKind.GENESIS, 0, no_hash, genesis)
    close = a_record(LedgerKind.CLOSE, 1, record_hash(encode(first)), Close(end_offsets=(0,), reason="done"))
    with broker.producer(client_id="trainer") as producer:
        for record in (first, close):
            producer.send(topics.steps, 0, encode(record))
        producer.flush(10)


def a_record(kind: LedgerKind, sequence: int, head: bytes, body: Genesis | Close) -> LedgerRecord:
    return LedgerRecord(
        kind=kind,
        sequence=sequence,
        version=0,
        alpha=1.0,
        previous_hash=head,
        low_water_marks=(0,),
        body=body,
    )


def a_supervisor(tmp_path: Path, **scripts: str) -> Supervisor:
    roles = [
        RoleSpec(
            name=name,
            kind=name,
            command=(sys.executable, "-c", script),
            log_path=tmp_path / f"{name}.log",
        )
        for name, script in scripts.items()
    ]
    return Supervisor(roles, policy=RestartPolicy(max_restarts=1, first_delay_seconds=0.01))


def watched(broker: MemoryBroker, supervisor: Supervisor) -> Outcome:
    with RunProgress(broker, topics) as progress, StopSignals(num_graceful=3) as signals, supervisor:
        watcher = Watcher(progress, Lines(facts, 1), supervisor.roles)
        return Supervision(supervisor, watcher, signals, BrokerKeeper(None)).run()


def test_a_run_that_closed_ends_with_status_0(tmp_path: Path) -> None:
    outcome = watched(a_broker(closed=True), a_supervisor(tmp_path, dispatch="pass", train="pass"))

    assert outcome.exit_status == 0
    assert outcome.view.is_closed


def test_roles_that_leave_an_open_run_behind_are_no_success(tmp_path: Path) -> None:
    assert watched(a_broker(), a_supervisor(tmp_path, train="pass")).exit_status == 1


def test_when_one_role_is_given_up_the_others_are_stopped(tmp_path: Path) -> None:
    supervisor = a_supervisor(tmp_path, dispatch=sleeper, train="raise SystemExit('no such model')")

    with pytest.raises(ChildFailed, match=r"(?s)train was given up.*no such model"):
        watched(a_broker(), supervisor)

    assert [role.state for role in supervisor.roles] == [RoleState.STOPPED, RoleState.GIVEN_UP]
    assert supervisor.roles[0].child is not None
    assert supervisor.roles[0].child.poll() == -signal.SIGTERM


def test_a_role_that_fails_after_the_end_does_not_spoil_it(tmp_path: Path) -> None:
    supervisor = a_supervisor(tmp_path, rollout="raise SystemExit(78)", train="pass")

    assert watched(a_broker(closed=True), supervisor).exit_status == 0


def test_a_signal_stops_everything_and_shows_in_the_status(tmp_path: Path) -> None:
    interrupt = "import os, signal; os.kill(os.getppid(), signal.SIGINT); " + sleeper
    supervisor = a_supervisor(tmp_path, dispatch=sleeper, train=interrupt)

    outcome = watched(a_broker(), supervisor)

    assert outcome.exit_status == 130
    assert {role.state for role in supervisor.roles} == {RoleState.STOPPED}


def test_each_role_is_started_by_its_command(tmp_path: Path) -> None:
    settings = Settings().changed(run={"name": "first"}, metrics={"port": 9000})

    specs = role_specs(settings, "127.0.0.1:9092", tmp_path, tmp_path / "logs", 2)

    assert [spec.name for spec in specs] == ["dispatcher", "rollout-0", "rollout-1", "trainer"]
    assert [spec.command[3] for spec in specs] == ["dispatch", "rollout", "rollout", "train"]
    assert [spec.command[-1] for spec in specs] == ["9000", "9002", "9003", "9001"]
    assert all("--broker 127.0.0.1:9092" in " ".join(spec.command) for spec in specs)


@dataclass
class ABroker:
    pid: int
    log_path: Path
    num_restarts: int = 0
    refusals: tuple[str, ...] = ()

    def restart(self) -> None:
        self.num_restarts += 1
        if self.num_restarts <= len(self.refusals):
            raise BrokerError(self.refusals[self.num_restarts - 1])
        self.pid = os.getpid()


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_a_broker_that_died_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    broker = ABroker(ended_pid(), tmp_path / "broker.log")
    keeper = BrokerKeeper(broker, RestartPolicy(max_restarts=2))

    for _ in range(2):
        keeper.run_once()
        broker.pid = ended_pid()
    with pytest.raises(ChildFailed, match=r"broker\.log"):
        keeper.run_once()

    assert broker.num_restarts == 2


def test_a_broker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    broker = ABroker(ended_pid(), tmp_path / "broker.log", refusals=("it ended while starting",) * 2)
    keeper = BrokerKeeper(broker)

    for _ in range(4):
        keeper.run_once()

    assert broker.num_restarts == 3
    assert exists(broker.pid)


def test_why_a_broker_does_not_start_again_is_told_in_the_end(tmp_path: Path) -> None:
    broker = ABroker(ended_pid(), tmp_path / "broker.log", refusals=("the port is taken",) * 3)
    keeper = BrokerKeeper(broker, RestartPolicy(max_restarts=2))

    keeper.run_once()
    keeper.run_once()
    with pytest.raises(ChildFailed, match="does not start again: the port is taken"):
        keeper.run_once()


def test_a_full_disk_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollog.run.local_run.no_room", lambda _: "no room left on the disk of /data")
    broker = ABroker(ended_pid(), tmp_path / "broker.log", refusals=("no room left on the disk of /data",))

    with pytest.raises(ChildFailed, match="does not start again: no room left on the disk of /data"):
        BrokerKeeper(broker).run_once()


def test_a_living_broker_is_left_alone(tmp_path: Path) -> None:
    broker = ABroker(os.getpid(), tmp_path / "broker.log")

    BrokerKeeper(broker).run_once()

    assert broker.num_restarts == 0
