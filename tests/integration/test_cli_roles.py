"""Commands against the real broker: creating a run, role processes, their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from support.builders import a_sample
from support.waiting import wait_until
from support.written_run import WrittenRun

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.runs import find_run
from rollog.run.creation import complete, create_run
from rollog.settings.sources import load_settings
from schemas import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.session_kafka import SessionKafka

pytestmark = pytest.mark.broker


class Shell:
    """Runs `rollog` in an empty directory against one broker; ends what is left running."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self.address = address
        self.run = f"run-{uuid.uuid4().hex[:8]}"
        self.started: list[subprocess.Popen[bytes]] = []
        rows = [{"prompt": f"{number} + 1 =", "answer": number + 1} for number in range(64)]
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "run.toml").write_text(
            f'[model]\npath = "Some/Model"\n[data]\ntrain = "{directory / "rows.jsonl"}"\n'
            '[reward]\nfunction = "here:reward"\n'
        )

    def command(self, *words: str) -> list[str]:
        place = ("--run", self.run, "--broker", self.address, "--home", str(self.directory / "home"))
        return [sys.executable, "-m", "rollog.cli.main", *words, *place]

    @property
    def summary(self) -> Path:
        return self.directory / "home" / "runs" / self.run / "summary.json"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
            cwd=self.directory,
            env=self.environment,
        )

    def create_run(self) -> WrittenRun:
        """As `rollog topics create` does, without the time that takes to start."""
        settings = load_settings(self.directory / "run.toml", assignments=[f"run.name={self.run}"])
        broker = KafkaBroker(self.address)
        create_run(broker, complete(settings, self.directory / "home", lambda _what, _fraction: None))
        manifest = find_run(broker, "rollog", self.run)
        return WrittenRun(broker, RunTopics("rollog", self.run), manifest.config_json)

    def start(self, *words: str, log: str, output: str = "output") -> subprocess.Popen[bytes]:
        with (self.directory / log).open("wb") as errors, (self.directory / output).open("wb") as told:
            process = subprocess.Popen(
                self.command(*words), stdout=told, stderr=errors, cwd=self.directory, env=self.environment
            )
        self.started.append(process)
        return process

    def wait_for(self, log: str, words: str) -> None:
        wait_until(lambda: words in (self.directory / log).read_text(), 60, f"{words!r} in {log}")


@pytest.fixture
def shell(tmp_path: Path, embedded_kafka: SessionKafka) -> Iterator[Shell]:
    made = Shell(tmp_path, embedded_kafka.address)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_a_run_is_created_once(shell: Shell) -> None:
    created = shell.call("topics", "create", "--skip-preflight", "--config", "run.toml")
    checked = shell.call("topics", "check", "--config", "run.toml")
    again = shell.call("topics", "create", "--skip-preflight", "--config", "run.toml")

    assert (created.returncode, checked.returncode) == (0, 0), created.stderr + checked.stderr
    assert again.returncode == 1
    assert f"run '{shell.run}' exists already" in again.stderr


def test_devices_are_planned_by_the_records_of_a_run(shell: Shell) -> None:
    run = shell.create_run()
    run.genesis()
    for seconds in (1.0, 2.0, 3.0, 2.0):
        run.write(run.topics.samples, a_sample(timings=Timings(generation_seconds=seconds)))
    run.step(1, reward=0.0, lags={}, train_seconds=4.0, num_epochs=1)

    planned = shell.call("plan", "--devices", "8", "--slots-per-device", "2", "--json", "plan.json")

    assert planned.returncode == 0, planned.stderr
    written = json.loads((shell.directory / "plan.json").read_text())
    assert written["run"] == shell.run
    assert (written["workload"]["mean_seconds"], written["workload"]["max_seconds"]) == (2.0, 3.0)
    assert (written["workload"]["train_seconds_per_sample"], written["workload"]["slots_per_device"]) == (
        2.0,
        2,
    )


def test_creating_what_exists_may_be_asked_for(shell: Shell) -> None:
    created = shell.call("topics", "create", "--if-missing", "--skip-preflight", "--config", "run.toml")
    again = shell.call("topics", "create", "--if-missing", "--skip-preflight", "--config", "run.toml")
    other = shell.call(
        "topics", "create", "--if-missing", "--skip-preflight", "--config", "run.toml", "--set", "run.seed=7"
    )

    assert (created.returncode, again.returncode, other.returncode) == (0, 0, 2), again.stderr
    assert f"created run {shell.run}" in created.stdout
    assert f"run {shell.run} exists already" in again.stdout
    assert "another configuration: run.seed = 0 there, 7 here" in other.stderr


def test_a_taken_name_comes_with_the_ways_to_go_on(shell: Shell) -> None:
    shell.create_run()

    ended = shell.call("up", "--skip-preflight", "--config", "run.toml")

    assert ended.returncode == 1
    assert f"run '{shell.run}' exists already" in ended.stderr
    assert f"rollog watch --run {shell.run}" in ended.stderr


@pytest.mark.parametrize("role", ["dispatch", "rollout", "train"])
def test_a_role_refuses_topics_that_are_not_the_run_s(shell: Shell, role: str) -> None:
    shell.create_run()
    with KafkaBroker(shell.address).admin() as admin:
        admin.delete_topics([f"rollog.{shell.run}.evaluations"])
        wait_until(
            lambda: not admin.describe_topics([f"rollog.{shell.run}.evaluations"]), 20, "it to be gone"
        )

    ended = shell.call(role)

    assert ended.returncode == 1
    assert f"topic rollog.{shell.run}.evaluations does not exist" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_missing_topics_are_named_with_a_remedy(shell: Shell) -> None:
    checked = shell.call("topics", "check", "--config", "run.toml")

    assert checked.returncode == 1
    assert f"topic rollog.{shell.run}.steps does not exist" in checked.stderr


def test_topics_of_another_shape_are_refused(shell: Shell) -> None:
    shell.create_run()

    checked = shell.call("topics", "check", "--config", "run.toml", "--set", "broker.samples_partitions=7")

    assert checked.returncode == 1
    assert "not 7" in checked.stderr


def test_a_role_of_an_unknown_run_gives_up_after_its_wait(shell: Shell) -> None:
    ended = shell.call("dispatch", "--wait", "0")

    assert ended.returncode == 1
    assert f"there is no run '{shell.run}'" in ended.stderr


def test_a_dispatcher_finds_its_settings_in_the_manifest_and_stops_gracefully(shell: Shell) -> None:
    shell.create_run()
    dispatcher = shell.start("dispatch", log="log")
    shell.wait_for("log", "role begins")

    dispatcher.send_signal(signal.SIGTERM)

    assert dispatcher.wait(60) == 128 + signal.SIGTERM, (shell.directory / "log").read_text()
    assert "role ends" in (shell.directory / "log").read_text()


def test_a_dispatcher_waits_for_its_run_to_be_created(shell: Shell) -> None:
    shell.start("dispatch", log="log")
    shell.call("topics", "create", "--skip-preflight", "--config", "run.toml")

    shell.wait_for("log", "role begins")


def test_a_broken_data_set_ends_the_dispatcher_with_the_status_for_settings(shell: Shell) -> None:
    (shell.directory / "rows.jsonl").write_text('{"prompt": "1 + 1 ="}\nnot json\n')
    shell.create_run()

    ended = shell.call("dispatch")

    assert ended.returncode == 2
    assert "line 2" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_role_serves_its_metrics(shell: Shell) -> None:
    shell.create_run()
    shell.start("dispatch", "--metrics-port", "0", log="log")

    shell.wait_for("log", "metrics served role=dispatcher host=127.0.0.1 port=")


def test_a_role_takes_what_belongs_to_the_machine_from_a_file(shell: Shell) -> None:
    shell.create_run()
    (shell.directory / "machine.toml").write_text("[metrics]\nport = 0\n[groups]\ngroup_size = 99\n")

    shell.start("dispatch", "--config", "machine.toml", log="log")

    shell.wait_for("log", "metrics served role=dispatcher host=127.0.0.1 port=")


def test_a_run_is_watched_to_its_end_and_summed_up(shell: Shell) -> None:
    run = shell.create_run()
    run.genesis()
    watch = shell.start("watch", "--plain", log="log", output="output")
    run.step(1, reward=0.25, lags={"0": 2})
    shell.wait_for("output", "step 1/60  reward 0.250")

    run.close(1, end_offsets=(2, 0, 0, 0))

    assert watch.wait(60) == 0, (shell.directory / "log").read_text()
    summary = json.loads(shell.summary.read_text())
    assert (summary["closed"], summary["steps"], summary["samples_produced"]) == (True, 1, 2)
    assert f"run {shell.run} is over (done): 1 step in" in (shell.directory / "output").read_text()

    shell.summary.unlink()
    again = shell.call("watch")

    assert again.returncode == 0, again.stderr
    assert json.loads(shell.summary.read_text()) == summary


def test_ctrl_c_ends_watching_and_not_the_run(shell: Shell) -> None:
    run = shell.create_run()
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})
    watch = shell.start("watch", "--plain", log="log", output="output")
    shell.wait_for("output", "step 1/60")

    watch.send_signal(signal.SIGINT)

    assert watch.wait(60) == 130
    told = (shell.directory / "log").read_text()
    assert "only watching it has ended" in told
    assert "Traceback" not in told
    assert not shell.summary.exists()


def test_an_audit_counts_and_names_and_ends_with_one(shell: Shell) -> None:
    """The written run is no run: what it says of its steps has no samples behind it."""
    run = shell.create_run()
    run.genesis()
    begun = shell.call("audit", "--no-weights-files")
    run.step(1, reward=0.25, lags={"0": 2})

    audit = shell.call("audit", "--no-weights-files", "--json", "audit.json", "--head", "ab" * 32)

    assert "1 records: genesis first" in begun.stdout
    assert audit.returncode == 1, audit.stderr
    assert f"OFF I1: rollog.{shell.run}.samples, partition 0, offset 0: g0.r0.a0" in audit.stdout
    assert "OFF chain: the head kept elsewhere is not in the chain" in audit.stdout
    written = json.loads((shell.directory / "audit.json").read_text())
    assert written["head"]["kept"] == "ab" * 32
    assert shell.call("audit", "--head", "abc").returncode == 2
    shell.run = "no-such-run"
    assert "there is no run 'no-such-run'" in shell.call("audit").stderr
