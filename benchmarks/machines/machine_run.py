"""One run over four hosts whose network fails, by the product's own commands, and the proof that nothing was lost.

    head     Apache Kafka, dispatcher, trainer
    store    an S3-compatible server, which holds the weights
    one, two a rollout worker each

Each role runs under infra/keep-running.sh, as on a host of its own, with a state directory of its own. What ends is
started again by that script, and counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec

from benchmarks.chaos.checks import recounted
from benchmarks.chaos.killed_run import ChaosRun
from benchmarks.harness.demo_run import appended, prefix, set_options
from benchmarks.harness.random_model import ModelShape, write_prompts, write_random_model
from benchmarks.machines.hosts import Hosts
from benchmarks.machines.link import Conditions
from benchmarks.machines.phases import (
    Happened,
    Phase,
    phases,
    probed,
    settling_seconds,
    undisturbed,
    undisturbed_phase_seconds,
)
from benchmarks.machines.probe import Measured
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import resolve_jars
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ChildFailed
from rollog.run.connection import cache_directory
from schemas import LedgerKind, LedgerRecord, Sample
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.machines.hosts import Host
    from rollog.kernel.processes import ChildProcess

run_name = "machines"
head, store, workers = "head", "store", ("one", "two")
bucket = "rollog-weights"
_root = Path(__file__).resolve().parents[2]
_keep_running = _root / "infra" / "keep-running.sh"
_store_port, _probe_port = 9000, 9001
_start_seconds = 240.0
_step_seconds = 120.0
_check_seconds = 900.0
_tick_seconds = 0.1
_steps_first, _steps_after = 5, 5
_context_tokens = 64
# A million parameters: a weights file of 4 MB, which crosses the network once for each worker and version.
_shape = ModelShape(
    vocab_size=512, hidden_size=128, intermediate_size=512, num_layers=4, num_heads=2, num_key_value_heads=1
)
settings: Mapping[str, object] = {
    "run.num_steps": 1_000_000,
    "groups.groups_per_batch": 4,
    "groups.group_size": 8,
    "data.id_field": "id",
    "model.max_context_tokens": _context_tokens,
    "sampling.max_tokens": 32,
    "reward.function": "benchmarks.harness.random_model:share_of_even_words",
    "evaluation.every_steps": 0,
    "rollout.capacity": 32,
    "rollout.num_threads": 1,
    "trainer.num_threads": 1,
    "trainer.num_minibatches": 1,
    "trainer.checkpoint_every_steps": 50,
    "weights.uri": f"s3://{bucket}/{run_name}",
}


@dataclass(slots=True)
class MachineRun:
    """The run while it goes on. Raises ChildFailed where it stands still, or a role gives up."""

    hosts: Hosts
    broker: KafkaBroker
    directory: Path
    server: ChildProcess
    options: Sequence[str]
    links: Mapping[str, Measured]
    """What the link of a worker did before the run, by the name of its conditions."""
    roles: dict[str, ChildProcess] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def home(self, name: str) -> Path:
        """The state directory of a host."""
        return self.directory / f"home-{name}"

    def command(self, host: str, *words: str) -> list[str]:
        """A `rollog` command as it is run on a host."""
        place = ("--home", str(self.home(host)), "--broker", self.broker.address)
        return [sys.executable, "-m", "rollog.cli.main", *words, *place]

    def start(self, host: str, role: str, *words: str) -> None:
        """Start a role on a host and keep it running."""
        kept = {"KEEP_RUNNING_FINAL": str(self.directory / f"{host}-{role}.final")}
        command = ["sh", str(_keep_running), *self.command(host, role, "--run", run_name, *words)]
        self.roles[f"{host}-{role}"] = self.hosts[host].start(
            command, self.log(f"{host}-{role}"), self.environment | kept
        )

    def call(self, host: str, *words: str) -> str:
        """Run a command on a host to its end; returns what it said. Raises ChildFailed for a status other than 0."""
        log = self.log(f"{host}-{words[0]}")
        child = self.hosts[host].start(self.command(host, *words), log, self.environment)
        try:
            self._wait(lambda: child.poll() is not None, _check_seconds, f"end of rollog {words[0]}")
        finally:
            status = child.kill()
        if status:
            raise ChildFailed(
                f"rollog {' '.join(words)} ended with {status}:\n" + "\n".join(child.last_lines(30))
            )
        return log.read_text(errors="replace")

    def log(self, name: str) -> Path:
        """What a process has said."""
        return self.directory / "logs" / f"{name}.log"

    def steps(self) -> list[float]:
        """When each step was committed, in seconds since 1970."""
        topic = RunTopics(prefix, run_name).steps
        return [
            moment
            for value, moment in appended(self.broker, topic)
            if isinstance(record := decode(value), LedgerRecord) and record.kind is LedgerKind.STEP
        ]

    def statuses(self) -> dict[str, int]:
        """How many samples ended in each way."""
        topic = RunTopics(prefix, run_name).samples
        found = Counter(
            str(sample.status)
            for value, _ in appended(self.broker, topic)
            if isinstance(sample := decode(value), Sample)
        )
        return dict(found)

    def num_restarts(self) -> dict[str, int]:
        """How often each role was started again."""
        return {
            name: self.log(name).read_text(errors="replace").count("keep-running: status")
            for name in self.roles
        }

    def wait_for_steps(self, number: int, seconds: float) -> None:
        """Wait until so many steps were committed in all."""
        self._wait(lambda: len(self.steps()) >= number, seconds, f"step {number}", every_seconds=1.0)

    def carry_out(self, phase: Phase) -> Happened:
        """Have a phase, and the time in which the run settles; then it must make another step, which ends the phase."""
        began = self.steps()[-1]
        for name, conditions in phase.links.items():
            self.hosts.set_conditions(name, conditions)
        for name in phase.down:
            self.hosts[name].set_link(is_up=False)
        if phase.stopped:
            os.killpg(self.server.pid, signal.SIGSTOP)
        try:
            self._sleep(phase.seconds)
        finally:
            if phase.stopped:
                os.killpg(self.server.pid, signal.SIGCONT)
            for name in phase.down:
                self.hosts[name].set_link(is_up=True)
            for name in phase.links:
                self.hosts.set_conditions(name, Conditions())
        if phase.name != undisturbed:
            self._sleep(settling_seconds)
        self.wait_for_steps(len(self.steps()) + 1, _step_seconds)
        return Happened(phase=phase, began=began, ended=self.steps()[-1])

    def finish(self) -> None:
        """Let the run end a few steps later: a trainer that is told to takes the place of the one at work."""
        trainer = self.roles.pop(f"{head}-train")
        trainer.terminate()
        self._wait(lambda: trainer.poll() is not None, _step_seconds, "the trainer to stop")
        number = len(self.steps()) + _steps_after
        self.start(head, "train", "--amend", f"run.num_steps={number}")
        self._wait(
            lambda: all(child.poll() == 0 for child in self.roles.values()),
            _check_seconds,
            "the end of all roles",
        )

    def verify(self) -> dict[str, object]:
        """Audit, replay from version 0 and recount the run that is over; returns what the audit and recount said."""
        audited = self.call(head, "audit", run_name)
        self.call(head, "replay", run_name)
        weights = self.directory / "weights"
        fsspec.filesystem("s3").get(f"{bucket}/{run_name}", str(weights), recursive=True)
        run = ChaosRun(name=run_name, home=self.home(head), kills={}, missed=())
        counted = recounted(run, self.broker.address, weights)
        return {"audit": audited.strip().splitlines()[-1], "recount": counted}

    def close(self) -> None:
        """End every role."""
        for child in self.roles.values():
            child.kill()

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._check_roles()
            time.sleep(_tick_seconds)

    def _wait(
        self, is_done: Callable[[], bool], seconds: float, what: str, *, every_seconds: float = _tick_seconds
    ) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            self._check_roles()
            if time.monotonic() > deadline:
                raise ChildFailed(f"no {what} after {seconds:g} s; see {self.directory / 'logs'}")
            time.sleep(every_seconds)

    def _check_roles(self) -> None:
        for name, child in self.roles.items():
            if child.poll():
                said = "\n".join(child.last_lines(30))
                raise ChildFailed(f"{name} gave up with status {child.poll()}:\n{said}")


@contextmanager
def machine_run(
    directory: Path, cache: Path, *, engine: str, seed: int, tell: Callable[[str], None]
) -> Iterator[MachineRun]:
    """Hosts, broker, store and a run on them whose first steps are taken; everything ends with the block."""
    resolve_jars(cache_directory(cache), tell)
    (directory / "logs").mkdir(parents=True)
    with ExitStack() as open_parts:
        hosts = open_parts.enter_context(Hosts((head, store, *workers), directory / "logs", seed))
        environment = store_environment(hosts[store])
        os.environ.update(environment)
        links = _measured_links(hosts, directory / "logs" / "probe.log")
        server = hosts[store].start(
            [sys.executable, "-m", "moto.server", "-H", hosts[store].address, "-p", str(_store_port)],
            directory / "logs" / "store.log",
        )
        open_parts.callback(server.kill)
        kafka = open_parts.enter_context(
            EmbeddedKafka(directory / "kafka", cache_directory(cache), host=hosts[head].address)
        )
        run = MachineRun(
            hosts=hosts,
            broker=KafkaBroker(kafka.address),
            directory=directory,
            server=server,
            links=links,
            options=set_options(
                {**settings, **_made(directory, seed), "rollout.engine": engine, "run.seed": seed}
            ),
        )
        open_parts.callback(run.close)
        _make_bucket(server)
        run.call(head, "topics", "create", "--run", run_name, *run.options)
        run.start(head, "dispatch")
        run.start(head, "train")
        for name in workers:
            run.start(name, "rollout", "--name", name)
        run.wait_for_steps(_steps_first, _start_seconds)
        yield run


def _measured_links(hosts: Hosts, log: Path) -> dict[str, Measured]:
    """What the link of a worker does under each of the conditions, before anything else uses it."""
    place = [hosts[head].address, str(_probe_port)]
    command = [sys.executable, "-m", "benchmarks.machines.probe"]
    found = {}
    for name, conditions in probed.items():
        hosts.set_conditions(workers[0], conditions)
        server = hosts[head].start([*command, "serve", *place], log)
        try:
            asked = subprocess.run(  # our own
                hosts[workers[0]].inside([*command, "ask", *place]),
                check=False,
                capture_output=True,
                text=True,
            )
        finally:
            server.kill()
        if asked.returncode:
            raise ChildFailed(f"the link {name} cannot be measured:\n{asked.stderr[-2000:]}")
        found[name] = Measured(**json.loads(asked.stdout))
    hosts.set_conditions(workers[0], Conditions())
    return found


def _made(directory: Path, seed: int) -> dict[str, object]:
    """A model and prompts, and the settings that name them."""
    model = directory / "model"
    model.mkdir()
    write_random_model(model, _shape, dtype="float32", max_context_tokens=_context_tokens, seed=seed)
    write_prompts(directory / "prompts.jsonl", _shape, num_prompts=512, num_words=8, seed=seed)
    return {"model.path": str(model), "data.train": str(directory / "prompts.jsonl")}


def store_environment(host: Host) -> dict[str, str]:
    """What a role's environment says of the store."""
    return {
        "AWS_ACCESS_KEY_ID": "machines",
        "AWS_SECRET_ACCESS_KEY": "machines",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host.address}:{_store_port}",
    }


def _make_bucket(server: ChildProcess) -> None:
    deadline = time.monotonic() + _start_seconds
    while True:
        try:
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
        except OSError as error:
            if time.monotonic() > deadline or server.poll() is not None:
                raise ChildFailed(f"the S3 server does not answer: {error}") from error
            time.sleep(_tick_seconds)
        else:
            return


def all_phases(run: MachineRun, only: Sequence[str] | None, tell: Callable[[str], None]) -> list[Happened]:
    """Have the faults, or those named, and a phase without one before each and after the last."""
    calm = Phase(name=undisturbed, seconds=undisturbed_phase_seconds)
    happened = [run.carry_out(calm)]
    for fault in phases(head, store, workers):
        if only and fault.name not in only:
            continue
        happened += [run.carry_out(fault), run.carry_out(calm)]
        tell(f"{fault.name}: {json.dumps(run.num_restarts())}")
    return happened
