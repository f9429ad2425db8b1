"""The declaration of rights: what it says of each role, and how it is printed."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from rollog.kernel.broker.acls import (
    Cluster,
    Grant,
    acls_json,
    kafka_acls_commands,
    kafka_users,
    parse_principal,
)
from rollog.kernel.broker.denials import naming_rights, require_rights
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.rights import (
    Operation,
    Resource,
    Right,
    Role,
    rights_of_role,
    rights_under_prefix,
    roles_of_one_run,
)
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, run_topic_names, runs_topic
from rollog.kernel.errors import (
    BrokerError,
    BrokerTimeout,
    ConfigError,
    NotAuthorized,
    exit_status,
    exit_status_configuration,
)

topics = RunTopics("rollog", "first")
everything = tuple(OptionalTopic)
names = [*run_topic_names(topics, everything), runs_topic("rollog")]


def writers(topic: str) -> set[Role]:
    return {
        role
        for role in Role
        for right in rights_of_role(role, topics, everything)
        if right == Right(Resource.TOPIC, topic, Operation.WRITE)
    } - {Role.UP}


def test_only_the_owner_of_a_topic_may_write_to_it() -> None:
    assert writers(topics.steps) == {Role.TRAINER}
    assert writers(topics.weights) == {Role.TRAINER}
    assert writers(topics.tasks) == {Role.DISPATCHER}
    assert writers(topics.control) == {Role.DISPATCHER, Role.TRAINER}
    assert writers(topics.samples) == {Role.DISPATCHER, Role.WORKER, Role.ADMINISTRATOR}
    assert writers(topics.turns) == {Role.WORKER}
    assert writers(topics.rewards) == {Role.SCORER}
    assert writers(runs_topic("rollog")) == {Role.CREATOR, Role.ADMINISTRATOR}


def test_only_an_administrator_may_delete_and_only_a_creator_create() -> None:
    allowed = {
        operation: {
            role for role in Role for right in rights_of_role(role, topics) if right.operation is operation
        }
        for operation in (Operation.DELETE, Operation.CREATE)
    }
    assert allowed == {Operation.DELETE: {Role.ADMINISTRATOR}, Operation.CREATE: {Role.CREATOR, Role.UP}}


def test_no_two_roles_that_work_share_a_transactional_id() -> None:
    ids = [
        (role, right.name)
        for role in (Role.DISPATCHER, Role.WORKER, Role.TRAINER, Role.CREATOR)
        for right in rights_of_role(role, topics)
        if right.resource is Resource.TRANSACTIONAL_ID
    ]
    assert sorted(name for _, name in ids) == [
        "rollog.first.dispatcher",
        "rollog.first.trainer",
        "rollog.runs/first",
    ]


@pytest.mark.parametrize("role", sorted(set(Role) - roles_of_one_run))
def test_the_rights_under_a_prefix_include_those_in_each_run(role: Role) -> None:
    under_prefix = rights_under_prefix(role, "rollog")
    for right in rights_of_role(role, topics):
        assert any(
            (each.resource, each.operation) == (right.resource, right.operation)
            and (right.name.startswith(each.name) if each.is_prefix else right.name == each.name)
            for each in under_prefix
        ), right
    assert not any(right.name.startswith(("rollog-2", "other")) for right in under_prefix)
    assert all(right.name.endswith((".", "/")) for right in under_prefix if right.is_prefix)


@pytest.mark.parametrize("role", sorted(roles_of_one_run))
def test_what_differs_from_run_to_run_cannot_be_said_of_a_prefix(role: Role) -> None:
    with pytest.raises(ValueError, match=role):
        rights_under_prefix(role, "rollog")


def test_a_prefix_of_one_run_is_of_no_other() -> None:
    for role in Role:
        for right in rights_of_role(role, topics):
            assert not right.is_prefix or right.name == "rollog.first."


def test_what_another_right_includes_is_left_out() -> None:
    rights = rights_of_role(Role.UP, topics)
    assert Right(Resource.TOPIC, "rollog.first.", Operation.READ, is_prefix=True) in rights
    assert not any(right.name == topics.samples and right.operation is Operation.READ for right in rights)
    assert not any(right.operation is Operation.DESCRIBE for right in rights)


@pytest.mark.parametrize("text", ["trainer", ":trainer", "User:", "User:*", "User:a\nb", "-x:y", "Us er:x"])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="User:rollog-trainer"):
        parse_principal(text)


def grant_of(role: Role, principal: str = "User:one") -> Grant:
    return Grant(role=role, principal=principal, rights=rights_of_role(role, topics, everything))


def test_commands_say_the_rights_and_nothing_else() -> None:
    for role in Role:
        commands = kafka_acls_commands([grant_of(role)], Cluster(bootstrap_servers="k:9092"))
        assert {right for command in commands for right in said_by(command)} == set(grant_of(role).rights)


def said_by(command: str) -> set[Right]:
    """The rights that a kafka-acls command gives."""
    words = shlex.split(command)
    assert words[:4] == ["kafka-acls", "--bootstrap-server", "k:9092", "--add"]
    options = list(zip(words[4::2], words[5::2], strict=True))
    kinds = {
        "--topic": Resource.TOPIC,
        "--group": Resource.GROUP,
        "--transactional-id": Resource.TRANSACTIONAL_ID,
    }
    operations = [_operations[value] for name, value in options if name == "--operation"]
    assert {name for name, _ in options} <= {
        "--allow-principal",
        "--operation",
        "--resource-pattern-type",
        *kinds,
    }
    is_prefix = ("--resource-pattern-type", "prefixed") in options
    return {
        Right(kinds[name], value, operation, is_prefix)
        for name, value in options
        if name in kinds
        for operation in operations
    }


_operations = {
    "Read": Operation.READ,
    "Write": Operation.WRITE,
    "Create": Operation.CREATE,
    "Delete": Operation.DELETE,
    "Describe": Operation.DESCRIBE,
    "DescribeConfigs": Operation.DESCRIBE_CONFIGS,
}


def test_a_shell_takes_a_hostile_principal_as_one_word() -> None:
    hostile = "User:a'; rm -rf $(pwd) #"
    commands = kafka_acls_commands(
        [grant_of(Role.SCORER, parse_principal(hostile))],
        Cluster(bootstrap_servers="k:9092", command_config="my file.properties"),
        is_removed=True,
    )
    for command in commands:
        words = shlex.split(command)
        assert words[words.index("--allow-principal") + 1] == hostile
        assert words[words.index("--command-config") + 1] == "my file.properties"
        assert words[5:7] == ["--remove", "--force"]


def test_plain_data_has_an_entry_for_each_right() -> None:
    entries = json.loads(acls_json([grant_of(Role.READER)]))
    assert len(entries) == len(grant_of(Role.READER).rights)
    assert {
        "role": "reader",
        "principal": "User:one",
        "host": "*",
        "permission_type": "ALLOW",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "rollog.first.",
        "pattern_type": "PREFIXED",
    } in entries


def test_a_kafka_user_has_the_fields_of_strimzis_resource() -> None:
    """The values that the definition of the resource (v1beta2) allows."""
    text = kafka_users(
        [grant_of(Role.TRAINER), grant_of(Role.CREATOR), grant_of(Role.SCORER, "User:CN=two")],
        cluster="my-cluster",
        authentication="scram-sha-512",
    )
    users = list(yaml.safe_load_all(text))
    assert [user["metadata"]["name"] for user in users] == ["one", "two"]
    said: set[Right] = set()
    for user in users:
        assert (user["apiVersion"], user["kind"]) == ("kafka.strimzi.io/v1beta2", "KafkaUser")
        assert user["metadata"]["labels"] == {"strimzi.io/cluster": "my-cluster"}
        assert user["spec"].keys() == {"authentication", "authorization"}
        assert user["spec"]["authentication"] == {"type": "scram-sha-512"}
        assert user["spec"]["authorization"]["type"] == "simple"
        for rule in user["spec"]["authorization"]["acls"]:
            assert rule.keys() == {"resource", "operations"}
            assert rule["resource"]["type"] in {"topic", "group", "cluster", "transactionalId"}
            assert rule["resource"]["patternType"] in {"literal", "prefix"}
            said |= {
                Right(
                    {"topic": Resource.TOPIC, "group": Resource.GROUP}.get(
                        rule["resource"]["type"], Resource.TRANSACTIONAL_ID
                    ),
                    rule["resource"]["name"],
                    _operations[operation],
                    rule["resource"]["patternType"] == "prefix",
                )
                for operation in rule["operations"]
            }
    assert said == {
        right for role in (Role.TRAINER, Role.CREATOR, Role.SCORER) for right in grant_of(role).rights
    }


@pytest.mark.parametrize("principal", ["User:Trainer", "User:a_b", "Group:x", "User:" + "a" * 65])
def test_who_cannot_be_a_kafka_user_is_refused(principal: str) -> None:
    with pytest.raises(ConfigError, match="KafkaUser"):
        kafka_users([grant_of(Role.SCORER, principal)], cluster="c", authentication="tls")


def test_a_broker_where_everybody_may_do_everything_refuses_nobody() -> None:
    for role in Role:
        require_rights(MemoryBroker(), role, topics, everything)


@pytest.mark.parametrize("refused", [NotAuthorized("samples: denied"), BrokerTimeout("samples: no answer")])
def test_a_refusal_that_nothing_explains_stays_what_it_is(refused: BrokerError) -> None:
    with pytest.raises(BrokerError) as caught, naming_rights(MemoryBroker(), Role.WORKER, topics):
        raise refused
    assert caught.value is refused


def test_a_missing_right_is_no_reason_to_start_a_role_again() -> None:
    assert exit_status(NotAuthorized("READ on topic x")) == exit_status_configuration
