"""A whole run of the demo on a secured cluster, as processes: what it needs, what it shows, what it listens on."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.listening import processes_below
from support.secured_kafka import Listener, SecuredKafka, SecuredListeners

from rollog.kernel.broker.topics import RunTopics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from support.listening import Process

    from rollog.kernel.broker.clients import ClientName

pytestmark = [
    pytest.mark.broker,
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

small = (
    "run.num_steps=3",
    "groups.groups_per_batch=2",
    "groups.group_size=8",
    "trainer.num_minibatches=1",
    "evaluation.every_steps=0",
    "metrics.port=0",
)
clients: tuple[ClientName, ...] = ("kafka-python", "confluent")
"""Every value of broker.client that leaves no choice."""


@dataclass(kw_only=True)
class SecuredRun:
    """A run that has ended, what was seen of it meanwhile, and what must not be."""

    kafka: SecuredKafka
    name: str
    directory: Path
    table: dict[str, str]
    client: ClientName
    secrets: Mapping[str, str]
    status: int = -1
    told: str = ""
    processes: dict[int, Process] = field(default_factory=dict)
    pages: dict[int, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def command(self, *words: str) -> list[str]:
        place = ("--broker", self.kafka.address_of(Listener.SCRAM_TLS), "--home", str(self.home))
        return [sys.executable, "-m", "rollog.cli.main", *words, *place]

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        variables = {f"ROLLOG_BROKER__SECURITY__{key.upper()}": value for key, value in self.table.items()}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "ROLLOG_BROKER__CLIENT": self.client,
            **variables,
            **{f"ROLLOG_BROKER__SECURITY__{key.upper()}": value for key, value in changes.items()},
        }

    def call(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            check=False,
            capture_output=True,
            text=True,
            timeout=400,
            cwd=self.directory,
            env=self.environment(**changes),
        )

    def up(self) -> None:
        """Do the run, looking at its processes all the while."""
        flags = [word for each in small for word in ("--set", each)]
        output = self.directory / "up.output"
        with output.open("wb") as told:
            started = subprocess.Popen(
                self.command("up", "--run", self.name, *flags),
                stdout=told,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment(),
            )
        while started.poll() is None:
            for process in processes_below(started.pid):
                self.processes[process.pid] = process.as_also_seen(self.processes.get(process.pid))
            self._read_metrics()
            time.sleep(0.5)
        self.status, self.told = started.returncode, output.read_text()

    def processes_by_role(self) -> dict[str, list[Process]]:
        """The processes of each role, of each at least one."""
        roles = {
            role: [process for process in self.processes.values() if f"main {role} " in process.command]
            for role in ("up", "dispatch", "rollout", "train")
        }
        assert all(roles.values()), [process.command for process in self.processes.values()]
        return roles

    def _read_metrics(self) -> None:
        for log in (self.home / "runs" / self.name / "logs").glob("*.log"):
            found = re.search(r"metrics served .* port=(\d+)", log.read_text(errors="replace"))
            if found is not None:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=2) as page:
                        self.pages[int(found[1])] = page.read().decode()
                except OSError:  # it has ended
                    continue


@pytest.fixture(scope="module", params=clients)
def secured_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache_directory: Path
) -> Iterator[SecuredRun]:
    if request.param == "confluent":
        pytest.importorskip("confluent_kafka")
    directory = tmp_path_factory.mktemp("run")
    secrets = {"password": f"planted-{uuid.uuid4().hex}", "phrase": f"planted-{uuid.uuid4().hex}"}
    listeners = SecuredListeners(users={"runner": secrets["password"]}, super_users=("runner",))
    kafka = SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners)
    (directory / "phrase").write_text(secrets["phrase"])
    sealed = kafka.authority.issue("runner", hosts=(), passphrase=secrets["phrase"].encode())
    table = kafka.table("runner") | {
        "certificate_file": str(sealed.certificate),
        "key_file": str(sealed.key),
        "key_passphrase_file": str(directory / "phrase"),
    }
    with kafka:
        run = SecuredRun(
            kafka=kafka,
            name="secured",
            directory=directory,
            table=table,
            client=request.param,
            secrets=secrets,
        )
        run.home.mkdir()
        (run.home / "cache").symlink_to(cache_directory)
        run.up()
        yield run


def test_the_demo_ends_is_audited_and_replayed_bit_for_bit(secured_run: SecuredRun) -> None:
    assert secured_run.status == 0, secured_run.told
    audited = secured_run.call("audit", secured_run.name)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    replayed = secured_run.call("replay", secured_run.name)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "EQUAL" in replayed.stdout
    listed = secured_run.call("runs")
    assert secured_run.name in listed.stdout


def test_no_secret_is_seen_anywhere(secured_run: SecuredRun) -> None:
    wrong = secured_run.directory / "wrong"
    wrong.write_text(f"planted-{uuid.uuid4().hex}")
    properties = secured_run.directory / "client.properties"
    told = f"planted-{uuid.uuid4().hex}"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured_run.kafka.authority.path}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="runner" password="{told}";\n'
    )
    refused = secured_run.call("audit", secured_run.name, password_file=str(wrong))
    assert refused.returncode == 2, refused.stderr
    assert "does not take the password of user 'runner'" in refused.stderr
    traced = secured_run.call("--debug", "audit", secured_run.name, password_file=str(wrong))
    assert "Traceback" in traced.stderr
    kept, secured_run.table = secured_run.table, {"properties_file": str(properties)}
    try:
        traced_with_properties = secured_run.call("--debug", "audit", secured_run.name)
    finally:
        secured_run.table = kept
    assert "does not take the password" in traced_with_properties.stderr
    seen = {
        "up": secured_run.told,
        "a refused command": _all_of(refused),
        "a refused command with its traceback": _all_of(traced),
        "a refused properties file": _all_of(traced_with_properties),
        "doctor": _all_of(secured_run.call("doctor")),
        "doctor with a wrong password": _all_of(secured_run.call("doctor", password_file=str(wrong))),
        **{f"metrics at {port}": page for port, page in secured_run.pages.items()},
    }
    for process in secured_run.processes.values():
        seen[f"arguments of {process.pid}"] = process.command
        seen[f"environment of {process.pid}"] = process.environment
    for path in secured_run.home.rglob("*"):
        if path.is_file() and path.stat().st_size < 64 << 20:
            seen[str(path)] = path.read_bytes().decode("latin-1")
    broker = secured_run.kafka.broker("runner")
    with broker.admin() as admin:
        topics = admin.list_topics()
    assert RunTopics("rollog", secured_run.name).steps in topics
    for topic in topics:
        seen[f"topic {topic}"] = str([(r.key, r.value, r.headers) for r in read_to_end(broker, topic)])
    planted = {*secured_run.secrets.values(), wrong.read_text(), told}
    assert [place for place, text in seen.items() if any(secret in text for secret in planted)] == []
    assert len(secured_run.pages) == 3
    assert sum("rollog.cli.main" in process.command for process in secured_run.processes.values()) >= 4


def test_a_properties_file_is_enough_to_read_a_run(secured_run: SecuredRun) -> None:
    properties = secured_run.directory / "reader.properties"
    properties.write_text(
        "security.protocol = SASL_SSL\nsasl.mechanism: SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured_run.kafka.authority.path}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="runner" password="{secured_run.secrets["password"]}";\n'
    )
    kept = secured_run.table
    secured_run.table = {"properties_file": str(properties)}
    try:
        listed = secured_run.call("runs")
    finally:
        secured_run.table = kept
    assert listed.returncode == 0, listed.stderr
    assert secured_run.name in listed.stdout


def test_every_role_goes_through_the_client_that_was_chosen(secured_run: SecuredRun) -> None:
    for role, processes in secured_run.processes_by_role().items():
        for process in processes:
            has_librdkafka = any(name.startswith("librdkafka") for name in process.libraries)
            assert has_librdkafka == (secured_run.client == "confluent"), role


def test_every_role_listens_on_loopback_alone(secured_run: SecuredRun) -> None:
    roles = secured_run.processes_by_role()
    places = {place for process in secured_run.processes.values() for place in process.listens}
    open_to_others = [
        (process.command[:200], host, port)
        for process in secured_run.processes.values()
        for host, port in process.listens
        if not ipaddress.ip_address(host).is_loopback
    ]
    assert open_to_others == []
    # The metrics of each role, which were asked for, are among them: the look is not blind.
    assert {("127.0.0.1", port) for port in secured_run.pages} <= places
    assert not any(process.listens for process in roles["up"])


def _all_of(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stdout + ended.stderr
