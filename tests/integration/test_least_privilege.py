"""Roles that have the rights of their declaration and no others, on a broker that refuses everything else."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from support.roles_with_rights import RolesWithRights, settings_of_roles, working_roles
from support.secured_kafka import Listener, SecuredKafka
from support.waiting import wait_until

from producers.rewards.late import LateRewards, framed_for_rewards
from rollog.kernel.broker.denials import naming_rights, require_rights
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.rights import Operation, Resource, Right, Role, rights_of_role
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, run_topic_names, runs_topic
from rollog.kernel.errors import NotAuthorized
from rollog.settings.registry import RegistryConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from support.acls import Acls

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.ports import Broker, Producer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

prefix = "least"
named_within_seconds = 15.0
own_roles = [role for role in Role if role is not Role.UP]


@pytest.fixture(scope="module")
def brokers(kafka_of_roles: SecuredKafka) -> dict[Role, KafkaBroker]:
    """The cluster as each role sees it: enough to ask for rights, which every client leaves to the same one."""
    return {role: kafka_of_roles.broker(role.value) for role in Role}


@pytest.fixture(params=["kafka-python", "confluent"])
def working_brokers(kafka_of_roles: SecuredKafka, request: pytest.FixtureRequest) -> dict[Role, KafkaBroker]:
    """The same for those who write and read, through each client library in turn."""
    if request.param == "confluent":
        pytest.importorskip("confluent_kafka")
    kafka_of_roles.client = request.param
    made = {role: kafka_of_roles.broker(role.value) for role in Role}
    kafka_of_roles.client = "auto"
    return made


@pytest.fixture(scope="module")
def created(
    acls: Acls, brokers: dict[Role, KafkaBroker], tmp_path_factory: pytest.TempPathFactory
) -> RolesWithRights:
    """A run with late rewards whose roles have their rights, made by its creator."""
    home = tmp_path_factory.mktemp("created")
    settings = settings_of_roles(home, "created", prefix, reward={"late": True, "deadline_seconds": 60})
    run = RolesWithRights(settings, home, brokers)
    for role in own_roles:
        acls.grant(role.value, rights_of_role(role, run.topics, settings.optional_topics))
    run.create()
    return run


def test_a_run_is_made_done_and_audited_by_roles_that_have_their_own_rights_alone(
    acls: Acls, working_brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    run = RolesWithRights(settings_of_roles(tmp_path, a_name("done"), prefix), tmp_path, working_brokers)
    for role in (Role.CREATOR, Role.READER, *working_roles):
        acls.grant(role.value, rights_of_role(role, run.topics))
    run.create()
    run.work_to_their_end()
    report = run.audited()
    assert report.is_clean, "\n".join(report.lines())


@pytest.mark.parametrize("role", own_roles)
def test_each_right_that_is_taken_away_is_named_with_the_command_that_gives_it(
    role: Role, created: RolesWithRights, acls: Acls, brokers: dict[Role, KafkaBroker]
) -> None:
    optional = created.settings.optional_topics
    require_rights(brokers[role], role, created.topics, optional)
    for right in rights_of_role(role, created.topics, optional):
        if right.operation is Operation.CREATE:
            continue  # of topics that are there
        with acls.without(role.value, right):
            began = time.monotonic()
            with pytest.raises(NotAuthorized) as refused:
                require_rights(brokers[role], role, created.topics, optional)
            assert time.monotonic() - began < named_within_seconds
        told = str(refused.value)
        concerned = f"{right.operation} on {right.resource} {right.name}"
        assert concerned in told
        assert f"User:{role} may not do what role {role} does in run created" in told
        assert "kafka-acls --bootstrap-server" in told
        others = [
            other
            for other in rights_of_role(role, created.topics, optional)
            if not other.name.startswith(right.name) or other.resource is not right.resource
        ]
        assert not any(f"{other.operation} on {other.resource} {other.name}\n" in told for other in others)


def test_a_role_that_shows_a_certificate_has_the_rights_of_its_principal(
    created: RolesWithRights, acls: Acls, kafka_of_roles: SecuredKafka
) -> None:
    worker = kafka_of_roles.broker(Role.WORKER.value, Listener.MUTUAL_TLS)
    require_rights(worker, Role.WORKER, created.topics)
    right = Right(Resource.TOPIC, created.topics.samples, Operation.WRITE)
    # What the cluster makes of a certificate is not known here.
    told = rf"this client may not do what role worker does in run created [\s\S]*  {right}\n[\s\S]*User:NAME"
    with acls.without(Role.WORKER.value, right), pytest.raises(NotAuthorized, match=told):
        require_rights(worker, Role.WORKER, created.topics)


def test_offsets_that_may_not_be_committed_any_more_are_told_once_in_the_log(
    created: RolesWithRights,
    acls: Acls,
    working_brokers: dict[Role, KafkaBroker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = TopicPartition(created.topics.tasks, 0)
    right = Right(Resource.GROUP, created.topics.worker_group, Operation.READ)
    group = created.topics.worker_group

    def tells() -> list[str]:
        consumer.commit({place: 0})
        consumer.poll(0.1)
        return [record.message for record in caplog.records if f"under group {group}" in record.message]

    with working_brokers[Role.WORKER].consumer(client_id="worker", group_id=group) as consumer:
        consumer.assign({place: 0})
        consumer.commit({place: 0})
        consumer.poll(0.5)
        with acls.without(Role.WORKER.value, right):
            told = wait_until(tells, named_within_seconds, "a warning")
            for _ in range(5):
                tells()
        assert len(tells()) == 1, told
        assert "grant the right: `rollog topics acls`" in told[0]


def test_all_that_a_role_lacks_is_named_at_once(
    created: RolesWithRights, brokers: dict[Role, KafkaBroker]
) -> None:
    """User:up has no ACL at all."""
    with pytest.raises(NotAuthorized) as refused:
        require_rights(brokers[Role.UP], Role.TRAINER, created.topics)
    told = str(refused.value)
    for right in rights_of_role(Role.TRAINER, created.topics):
        assert f"  {right}\n" in told
    assert f"`rollog topics acls --run created --set run.prefix={prefix} --principal trainer=User:up`" in told


@pytest.mark.parametrize("role", own_roles)
def test_the_cluster_refuses_a_role_whatever_its_declaration_does_not_have(
    role: Role, created: RolesWithRights, brokers: dict[Role, KafkaBroker]
) -> None:
    topics, optional = created.topics, created.settings.optional_topics
    declared = rights_of_role(role, topics, optional)
    everything = [*_rights_on_topics(topics), *_rights_on_names(topics)]
    with brokers[role].admin() as admin:
        missing = admin.missing_rights(everything)
    assert missing == [right for right in everything if not _is_granted(right, declared)]


def test_a_scorer_does_its_part_with_its_rights_alone(
    created: RolesWithRights, acls: Acls, brokers: dict[Role, KafkaBroker]
) -> None:
    broker, topics = brokers[Role.SCORER], created.topics
    with LateRewards(framed_for_rewards(broker, topics, RegistryConfig()), topics, scorer="test") as rewards:
        rewards.send("g0.r0.a0", 1.0)
        rewards.flush(named_within_seconds)
    right = Right(Resource.TOPIC, runs_topic(prefix), Operation.READ)
    told = rf"may not do what role scorer does in run created[\s\S]*{right}"
    with acls.without(Role.SCORER.value, right), pytest.raises(NotAuthorized, match=told):
        framed_for_rewards(broker, topics, RegistryConfig())


def test_who_has_no_right_to_write_is_refused_at_once_by_name(
    created: RolesWithRights, working_brokers: dict[Role, KafkaBroker]
) -> None:
    topics = created.topics
    for role, topic in (
        (Role.WORKER, topics.steps),
        (Role.WORKER, topics.tasks),
        (Role.WORKER, topics.control),
        (Role.DISPATCHER, topics.steps),
        (Role.TRAINER, topics.samples),
        (Role.SCORER, topics.samples),
        (Role.READER, topics.samples),
        (Role.CREATOR, topics.tasks),
        (Role.ADMINISTRATOR, topics.steps),
    ):
        began = time.monotonic()
        with (
            working_brokers[role].producer(client_id="intruder") as producer,
            pytest.raises(NotAuthorized, match=r"(?i)authorization"),
        ):
            producer.send(topic, 0, b"forged").offset(named_within_seconds)
        assert time.monotonic() - began < named_within_seconds


def test_who_may_write_nowhere_is_told_so_by_every_call(
    created: RolesWithRights, working_brokers: dict[Role, KafkaBroker]
) -> None:
    """Such a producer has no part in idempotence: it is refused before it sends anything."""
    samples = created.topics.samples
    broker = working_brokers[Role.READER]

    def send_once(producer: Producer) -> None:
        producer.send(samples, 0, b"forged")
        producer.flush(named_within_seconds)

    def send_until_refused(producer: Producer) -> None:
        wait_until(lambda: producer.send(samples, 0, b"forged").done() and False, named_within_seconds)

    for use in (send_once, send_until_refused):
        with (
            broker.producer(client_id="intruder") as producer,
            pytest.raises(NotAuthorized, match=f"{samples}: .*grant the right"),
        ):
            use(producer)


def test_who_has_no_right_to_read_delete_or_fence_is_refused_at_once(
    created: RolesWithRights, working_brokers: dict[Role, KafkaBroker]
) -> None:
    topics = created.topics
    began = time.monotonic()
    with working_brokers[Role.CREATOR].consumer(client_id="intruder") as consumer:
        consumer.assign({TopicPartition(topics.samples, 0): 0})
        with pytest.raises(NotAuthorized, match=topics.samples):
            wait_until(lambda: consumer.poll(0.2), named_within_seconds, "a refusal")
    with working_brokers[Role.READER].admin() as admin, pytest.raises(NotAuthorized, match=topics.steps):
        admin.delete_topics([topics.steps])
    with working_brokers[Role.WORKER].admin() as admin, pytest.raises(NotAuthorized, match=topics.samples):
        admin.delete_records({TopicPartition(topics.samples, 0): 0})
    with pytest.raises(NotAuthorized, match=topics.trainer_transactional_id):
        working_brokers[Role.WORKER].transactional_producer(topics.trainer_transactional_id)
    with pytest.raises(NotAuthorized, match=topics.dispatcher_transactional_id):
        working_brokers[Role.TRAINER].transactional_producer(topics.dispatcher_transactional_id)
    assert time.monotonic() - began < named_within_seconds


@pytest.mark.parametrize("role", [Role.DISPATCHER, Role.WORKER, Role.TRAINER])
def test_a_role_at_work_ends_by_name_when_a_right_is_taken_away(
    role: Role, acls: Acls, working_brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    settings = settings_of_roles(tmp_path, a_name("goes-on"), prefix).changed(run={"num_steps": 1_000_000})
    run = RolesWithRights(settings, tmp_path, working_brokers)
    for each in (Role.CREATOR, Role.READER, *working_roles):
        acls.grant(each.value, rights_of_role(each, run.topics))
    run.create()
    try:
        for each in working_roles:
            run.start(each)
        for right in _taken_at_work(role, run.topics):
            wait_for_steps(run, working_brokers[Role.READER])
            with acls.without(role.value, right):
                refused = run.wait_for_error(role, named_within_seconds)
                with (
                    pytest.raises(NotAuthorized) as named,
                    naming_rights(working_brokers[role], role, run.topics),
                ):
                    raise refused
            assert f"{right.operation} on {right.resource} {right.name}" in str(named.value), str(refused)
            run.start(role)
    finally:
        run.end()


def a_name(what: str) -> str:
    """Of a run that no other test has."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


def _taken_at_work(role: Role, topics: RunTopics) -> list[Right]:
    """Rights that a role uses again and again."""
    of_topics = {
        Role.DISPATCHER: [
            (topics.tasks, Operation.WRITE),
            (topics.samples, Operation.READ),
            (topics.steps, Operation.READ),
        ],
        Role.WORKER: [
            (topics.samples, Operation.WRITE),
            (topics.workers, Operation.WRITE),
            (topics.tasks, Operation.READ),
            (topics.weights, Operation.READ),
        ],
        Role.TRAINER: [
            (topics.samples, Operation.READ),
            (topics.steps, Operation.WRITE),
            (topics.tasks, Operation.READ),
        ],
    }
    rights = [Right(Resource.TOPIC, topic, operation) for topic, operation in of_topics[role]]
    if role is Role.TRAINER:
        rights.append(Right(Resource.GROUP, topics.trainer_group, Operation.READ))
        rights.append(Right(Resource.TRANSACTIONAL_ID, topics.trainer_transactional_id, Operation.WRITE))
    return rights


def wait_for_steps(run: RolesWithRights, reader: Broker) -> None:
    """Until every role has done its part once more."""
    with reader.consumer(client_id="steps") as consumer:
        place = TopicPartition(run.topics.steps, 0)
        begin = consumer.end_offsets([place])[place]

        def has_moved() -> bool:
            for running in run.running.values():
                if running.errors:
                    raise running.errors[0]
            return consumer.end_offsets([place])[place] >= begin + 6

        wait_until(has_moved, 60, "further steps")


def _rights_on_topics(topics: RunTopics) -> Iterator[Right]:
    names = [*run_topic_names(topics, tuple(OptionalTopic)), runs_topic(topics.prefix)]
    operations = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE_CONFIGS)
    exist = [name for name in names if name != topics.turns]
    return (Right(Resource.TOPIC, name, operation) for name in exist for operation in operations)


def _rights_on_names(topics: RunTopics) -> Iterator[Right]:
    yield from (
        Right(Resource.GROUP, name, Operation.READ) for name in (topics.trainer_group, topics.worker_group)
    )
    yield from (
        Right(Resource.TRANSACTIONAL_ID, name, Operation.WRITE)
        for name in (
            topics.trainer_transactional_id,
            topics.dispatcher_transactional_id,
            topics.manifest_transactional_id,
            topics.reinjection_transactional_id,
        )
    )


def _is_granted(right: Right, declared: Iterable[Right]) -> bool:
    return any(
        (each.resource, each.operation) == (right.resource, right.operation)
        and (right.name.startswith(each.name) if each.is_prefix else right.name == each.name)
        for each in declared
    )
