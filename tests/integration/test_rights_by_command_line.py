"""Rights as an administrator grants them with Kafka's own tools, and roles as processes that have them or lack them."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from support.acls import Acls
from support.broker_topics import read_to_end
from support.chat_models import saved_chat_model
from support.kafka_tools import KafkaTools
from support.roles_as_processes import Processes, longest_seconds
from support.roles_with_rights import RolesWithRights, settings_of_roles, working_roles
from support.secured_kafka import Listener, SecuredKafka
from support.threaded_run import settings_file

from rollog.cli.main import cli
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.rights import Operation, Role, rights_of_role
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import NotAuthorized, exit_status_configuration
from rollog.run.creation import create_run, specs_of_run

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.settings.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

prefix = "granted"


@pytest.fixture(scope="module")
def brokers(kafka_of_roles: SecuredKafka) -> dict[Role, KafkaBroker]:
    return {role: kafka_of_roles.broker(role.value) for role in Role}


@pytest.fixture(scope="module")
def tools(cache_directory: Path) -> KafkaTools:
    return KafkaTools(cache_directory)


@pytest.fixture
def administrator(kafka_of_roles: SecuredKafka, tmp_path: Path) -> Path:
    """A properties file of a super user, as Kafka's tools read it."""
    path = tmp_path / "admin.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    password = kafka_of_roles.secured.users["admin"]
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={kafka_of_roles.authority.path}\n"
        f'sasl.jaas.config={module} required username="admin" password="{password}";\n'
    )
    return path


def test_commands_as_printed_let_processes_of_every_role_do_a_run(
    kafka_of_roles: SecuredKafka,
    brokers: dict[Role, KafkaBroker],
    tools: KafkaTools,
    administrator: Path,
    tmp_path: Path,
) -> None:
    run = RolesWithRights(settings_of_roles(tmp_path, "by-tools", prefix), tmp_path, brokers)
    printed = printed_acls(run.topics, kafka_of_roles, administrator)
    for command in printed:
        tools.run(command)
    run.create()
    processes = Processes(kafka_of_roles, tmp_path, prefix, run.topics.run)
    dispatcher = processes.start("dispatcher", "dispatch")
    worker = processes.start("worker", "rollout", "--name", "worker")
    try:
        run.start(Role.TRAINER)
        run.to_their_end()
        for process in (dispatcher, worker):
            said, _ = process.communicate(timeout=longest_seconds)
            assert process.returncode == 0, said
    finally:
        run.end()
        for process in (dispatcher, worker):
            process.kill()
            process.wait()
    status, said = processes.call("reader", "audit")
    assert status == 0, said


def printed_acls(topics: RunTopics, kafka: SecuredKafka, administrator: Path) -> list[str]:
    """What `rollog topics acls` prints for the roles of a run, each under its own name."""
    roles = (Role.CREATOR, Role.DISPATCHER, Role.WORKER, Role.TRAINER, Role.READER)
    principals = [word for role in roles for word in ("--principal", f"{role}=User:{role}")]
    result = CliRunner().invoke(
        cli,
        [
            *("topics", "acls", "--run", topics.run, "--set", f"run.prefix={topics.prefix}"),
            *("--broker", kafka.address_of(Listener.SCRAM_TLS), "--command-config", str(administrator)),
            *principals,
        ],
    )
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (Role.DISPATCHER, ("dispatch",)),
        (Role.WORKER, ("rollout",)),
        (Role.TRAINER, ("train",)),
        (Role.READER, ("audit",)),
        (Role.ADMINISTRATOR, ("topics", "prune")),
        (Role.CREATOR, ("topics", "create", "--skip-preflight")),
    ],
)
def test_a_process_without_rights_ends_with_all_that_is_missing(
    role: Role, words: tuple[str, ...], kafka_of_roles: SecuredKafka, tmp_path: Path
) -> None:
    """User:scorer has no ACL here. The run does not even exist: nobody without rights is told so."""
    processes = Processes(kafka_of_roles, tmp_path, prefix, "nowhere")
    status, said = processes.call("scorer", *words)
    assert status == exit_status_configuration, said
    assert f"User:scorer may not do what role {role} does in run nowhere" in said
    topics = RunTopics(prefix, "nowhere")
    expected = [right for right in rights_of_role(role, topics) if right.operation is not Operation.CREATE]
    for right in expected:
        assert f"{right.operation} on {right.resource} {right.name}" in said
    assert "kafka-acls --bootstrap-server" in said
    assert f"--principal {role}=User:scorer`" in said


def test_where_topics_may_not_be_created_the_error_has_the_commands_and_then_they_are_taken_as_they_are(
    kafka_of_roles: SecuredKafka,
    brokers: dict[Role, KafkaBroker],
    tools: KafkaTools,
    administrator: Path,
    tmp_path: Path,
) -> None:
    settings = settings_of_roles(tmp_path, "made-by-others", prefix)
    topics = RunTopics(prefix, "made-by-others")
    acls = Acls(kafka_of_roles)
    acls.clear("creator")
    rights = rights_of_role(Role.CREATOR, topics)
    acls.grant("creator", [right for right in rights if right.operation is not Operation.CREATE])
    acls.close()
    with pytest.raises(NotAuthorized) as refused:
        create_run(brokers[Role.CREATOR], settings)
    said = str(refused.value)
    assert "User:creator may not create topics" in said
    commands = [line.strip() for line in said.splitlines() if line.strip().startswith("kafka-topics ")]
    with kafka_of_roles.broker().admin() as admin:
        existing = admin.list_topics()
        wanted = {spec.name: spec for spec in specs_of_run(settings) if spec.name not in existing}
        assert [named(command) for command in commands] == list(wanted)
        tools.run(f"{commands[0]} --command-config {shlex.quote(str(administrator))}")
        admin.create_topics([told(command) for command in commands[1:]])
        made = admin.describe_topics(list(wanted))
    for name, spec in wanted.items():
        assert made[name].num_partitions == spec.num_partitions
        assert made[name].config.items() >= spec.config.items()
    assert create_run(brokers[Role.CREATOR], settings).run == "made-by-others"


def test_a_run_of_agents_is_done_on_topics_that_were_made_as_printed(
    kafka_of_roles: SecuredKafka, brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    settings = settings_of_agents(tmp_path)
    run = RolesWithRights(settings, tmp_path, brokers)
    acls = Acls(kafka_of_roles)
    for role in (Role.CREATOR, Role.READER, *working_roles):
        rights = rights_of_role(role, run.topics, settings.optional_topics)
        acls.grant(role.value, [right for right in rights if right.operation is not Operation.CREATE])
    acls.close()
    config = settings_file(tmp_path / "run.toml", settings)
    printed = CliRunner().invoke(
        cli, ["topics", "print", "--run", "agents", "--config", str(config), "--format", "json"]
    )
    assert printed.exit_code == 0, printed.output
    specs = [
        TopicSpec(
            name=each["name"],
            num_partitions=each["partitions"],
            replication_factor=each["replication_factor"],
            config=each["config"],
        )
        for each in json.loads(printed.output)
    ]
    assert run.topics.turns in {spec.name for spec in specs}
    with kafka_of_roles.broker().admin() as admin:
        admin.create_topics(specs)
    run.create()
    run.work_to_their_end()
    report = run.audited()
    assert report.is_clean, "\n".join(report.lines())
    turns = read_to_end(brokers[Role.READER], run.topics.turns, (0, 1))
    samples = read_to_end(brokers[Role.READER], run.topics.samples, (0, 1))
    assert len(turns) >= len(samples) >= 4


def settings_of_agents(home: Path) -> Settings:
    """A small run whose sessions keep their turns on the log."""
    model = saved_chat_model(home / "chat", hidden_size=32, num_heads=4, max_position_embeddings=512)
    return settings_of_roles(
        home,
        "agents",
        prefix,
        model={"path": str(model), "max_context_tokens": 400},
        agent={"function": "support.agents_for_tests:two_calls", "max_turns": 4, "max_tokens": 64},
        dispatch={"durable_turns": True},
        groups={"filter_zero_signal": False},
    )


def named(command: str) -> str:
    """The topic that a kafka-topics command makes."""
    return told(command).name


def told(command: str) -> TopicSpec:
    """What a kafka-topics command makes."""
    words = shlex.split(command)
    options = list(zip(words[5::2], words[6::2], strict=True))
    single = dict(options)
    return TopicSpec(
        name=single["--topic"],
        num_partitions=int(single["--partitions"]),
        replication_factor=int(single["--replication-factor"]),
        config=dict(value.split("=", 1) for name, value in options if name == "--config"),
    )
