"""The secured composition with monitoring: it trains, each role has its rights and places, and all of it is measured.

Prometheus and Kafka are those of infra/.env. Grafana takes no part: its dashboards' queries are put to Prometheus.
"""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.composition import Composition, docker, require_engine
from support.dashboards import dashboards, idle_panels, queries, rules
from support.waiting import wait_until

from rollog.kernel.broker.topics import RunTopics

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

infra = Path(__file__).parents[2] / "infra"
files = (infra / "docker-compose.yml", infra / "docker-compose.secured.yml")
topics = RunTopics("rollog", "secured")
# More than anybody waits for: the run is made shorter when everything has been looked at.
num_steps = 500
measured = ("dispatcher", "rollout", "trainer")
last_steps = """
services:
  trainer:
    command: ["train", "--amend", "run.num_steps={version}"]
"""
living = (*measured, "kafka", "prometheus", "watch")
scraped_seconds = 300.0

shorter_run = f"""
services:
  topics:
    environment:
      ROLLOG_RUN__NUM_STEPS: "{num_steps}"
      ROLLOG_EVALUATION__NUM_PROMPTS: "32"
      ROLLOG_EVALUATION__EVERY_STEPS: "0"
"""

as_the_worker = f"""
from pathlib import Path
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAuthorizationFailedError
connection = dict(
    bootstrap_servers="kafka:9092",
    security_protocol="SASL_SSL",
    ssl_cafile="/etc/rollog/secrets/ca.pem",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_plain_username="rollout",
    sasl_plain_password=Path("/etc/rollog/secrets/password").read_text(),
)
weights = TopicPartition("{topics.weights}", 0)
print("weights end at", KafkaConsumer(**connection).end_offsets([weights])[weights])
for topic in ("{topics.steps}", "{topics.weights}", "{topics.control}"):
    try:
        KafkaProducer(**connection).send(topic, b"forged", partition=0).get(30)
    except TopicAuthorizationFailedError:
        print("refused:", topic)
"""

without_security = """
from kafka import KafkaProducer
from kafka.errors import KafkaError
try:
    KafkaProducer(bootstrap_servers="kafka:9092", bootstrap_timeout_ms=5000, max_block_ms=5000)
except KafkaError as error:
    print("refused:", type(error).__name__)
"""


class Secured(Composition):
    """The composition, and its Prometheus at a port of this machine."""

    roles = Composition.roles | {"secrets", "users"}

    def __init__(self, directory: Path, port: int) -> None:
        variables = {"PROMETHEUS_PORT": str(port), "COMPOSE_PROFILES": "monitoring"}
        super().__init__(directory, *files, run=topics.run, override=shorter_run, **variables)
        self._address = f"http://127.0.0.1:{port}/api/v1"
        self.drawn: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the roles and Prometheus, and with them what they depend on."""
        self.up("watch", *measured, "prometheus")

    def asked(self, path: str, **words: str) -> Any:
        """An answer of Prometheus."""
        query = f"?{urllib.parse.urlencode(words)}" if words else ""
        with urllib.request.urlopen(f"{self._address}/{path}{query}", timeout=20) as answer:
            return json.load(answer)["data"]

    def healthy(self) -> bool:
        """Whether every container that has a health check is healthy."""
        states = {service: self.inspected(service)["State"].get("Health") for service in living}
        return all(state["Status"] == "healthy" for state in states.values() if state is not None)

    def look_at_the_dashboards(self) -> None:
        """Ask each query of each panel that has shown nothing so far."""
        for dashboard in dashboards:
            for panel, expression in queries(dashboard):
                asked = expression.replace("$__rate_interval", "1m").replace("$run", ".*")
                if (dashboard.stem, panel) not in self.drawn and self.asked("query", query=asked)["result"]:
                    self.drawn.add((dashboard.stem, panel))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A run in containers that goes on, three steps old."""
    require_engine()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    composition = Secured(tmp_path_factory.mktemp("secured"), port)
    try:
        composition.start()
        composition.wait_for_step(3)
        yield composition
    finally:
        composition.call("down", "--volumes")


def test_every_service_is_healthy(secured: Secured) -> None:
    wait_until(secured.healthy, scraped_seconds, "every container to be healthy")
    checked = {service for service in living if secured.inspected(service)["State"].get("Health")}
    assert checked == {*measured, "kafka", "prometheus"}


def test_every_container_is_confined(secured: Secured) -> None:
    for service in (*living, "folders", "topics", "secrets", "users"):
        found = secured.inspected(service, with_ended=True)
        confined = found["HostConfig"]
        assert confined["ReadonlyRootfs"], service
        assert confined["CapDrop"] == ["ALL"], service
        assert not confined["CapAdd"], service
        assert not confined["Privileged"], service
        assert "no-new-privileges:true" in confined["SecurityOpt"], service
    for service in living:
        status = secured.call("exec", "-T", service, "cat", "/proc/1/status")
        users = re.search(r"^Uid:\t(\d+)\t(\d+)\t(\d+)", status, re.MULTILINE)
        assert users is not None
        assert "0" not in users.groups(), f"{service} is root"
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE), service
        assert "NoNewPrivs:\t1" in status, service


def test_nothing_but_prometheus_is_published_and_that_on_loopback(secured: Secured) -> None:
    published = {
        service: [place["HostIp"] for places in ports.values() for place in places or []]
        for service in living
        if (ports := secured.inspected(service)["NetworkSettings"]["Ports"])
    }
    assert {service: hosts for service, hosts in published.items() if hosts} == {"prometheus": ["127.0.0.1"]}


def test_a_worker_writes_neither_weights_nor_checkpoints_nor_its_own_programs(secured: Secured) -> None:
    payloads = f"/var/lib/rollog/weights/{topics.run}/payloads"
    for place in ("/var/lib/rollog/weights", "/var/lib/rollog/cache", "/opt/rollog", "/etc/rollog/secrets"):
        assert "Read-only file system" in secured.fails_inside("rollout", "touch", f"{place}/planted")
    secured.call(
        "exec", "-T", "rollout", "sh", "-c", f"echo large > {payloads}/sample && rm {payloads}/sample"
    )
    volumes = {
        service: {mount.get("Name") for mount in secured.inspected(service)["Mounts"]} for service in measured
    }
    checkpoints = f"{secured.project}_trainer"
    assert checkpoints in volumes["trainer"]
    assert checkpoints not in volumes["rollout"] | volumes["dispatcher"]
    saved = secured.call("exec", "-T", "trainer", "ls", f"/var/lib/rollog/runs/{topics.run}")
    assert "trainer-snapshot.json" in saved


def test_each_role_sees_its_own_password_alone(secured: Secured) -> None:
    seen = {}
    for service in (*measured, "watch"):
        place = "/etc/rollog/secrets"
        assert secured.call("exec", "-T", service, "ls", place).split() == ["ca.pem", "password"]
        seen[service] = secured.call("exec", "-T", service, "cat", f"{place}/password")
    assert len(set(seen.values())) == len(seen)
    assert {len(password) for password in seen.values()} == {64}
    told = secured.call("logs", "--no-color") + "".join(
        docker("inspect", secured.inspected(service)["Id"]) for service in living
    )
    assert not [service for service, password in seen.items() if password in told]


def test_a_worker_is_refused_where_it_has_no_right_to_write(secured: Secured) -> None:
    said = secured.call("exec", "-T", "rollout", "python", "-c", as_the_worker)
    end = re.search(r"weights end at (\d+)", said)
    assert end is not None
    assert int(end[1]) > 0
    refused = re.findall(r"refused: (\S+)", said)
    assert refused == [topics.steps, topics.weights, topics.control], said


def test_a_client_without_tls_is_refused(secured: Secured) -> None:
    assert "refused: " in secured.call("exec", "-T", "rollout", "python", "-c", without_security)


def test_prometheus_reads_every_role_and_has_the_alerts(secured: Secured) -> None:
    def all_up() -> bool:
        targets = secured.asked("targets", state="active")["activeTargets"]
        up = {target["labels"]["job"] for target in targets if target["health"] == "up"}
        return up == set(measured) and len(targets) == len(measured)

    wait_until(all_up, scraped_seconds, "every role to be read")

    def all_evaluated() -> bool:
        (group,) = secured.asked("rules", type="alert")["groups"]
        assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in rules()}
        return all(rule["health"] == "ok" for rule in group["rules"])

    wait_until(all_evaluated, scraped_seconds, "every alert to be evaluated")


def test_every_panel_shows_something_but_those_of_what_this_run_does_not_do(secured: Secured) -> None:
    everything = {(path.stem, panel) for path in dashboards for panel, _ in queries(path)}
    assert idle_panels <= everything

    def all_drawn() -> bool:
        time.sleep(2)  # new values come every 10 s
        secured.look_at_the_dashboards()
        return secured.drawn >= everything - idle_panels

    try:
        wait_until(all_drawn, scraped_seconds, "every panel to show something")
    except AssertionError as error:
        error.add_note(f"empty: {sorted(everything - idle_panels - secured.drawn)}")
        raise


def test_the_run_goes_on_with_new_passwords_and_its_audit_finds_nothing(secured: Secured) -> None:
    read = ("exec", "-T", "trainer", "cat", "/etc/rollog/secrets/password")
    before = secured.call(*read)
    secured.call("run", "--rm", "-T", "secrets", "passwords")
    secured.call("stop", "trainer")
    end = secured.version() + 3
    secured.add(last_steps.format(version=end))
    secured.call("up", "-d", "--force-recreate", "users", *measured, "watch", timeout_seconds=600)
    assert secured.call(*read) != before

    secured.wait_until_over()
    summary = secured.summary()
    assert (summary["closed"], summary["steps"]) == (True, end)
    words = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "rollog", "watch")
    assert "nothing is off" in secured.call(*words, "audit", topics.run)
