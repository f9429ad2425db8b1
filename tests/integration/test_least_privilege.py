"""Roles that have the rights of their declaration and no others, on a broker that refuses everything else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from support.principals import Acls, broker_of
from support.roles_with_rights import RolesWithRights, settings_of_roles, working_roles
from support.secured_kafka import SecuredKafka, SecuredListeners

from rollog.kernel.broker.denials import require_rights
from rollog.kernel.broker.rights import Operation, Resource, Right, Role, rights_of_role
from rollog.kernel.broker.topics import OptionalTopic, RunTopics, run_topic_names, runs_topic
from rollog.kernel.errors import NotAuthorized

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = pytest.mark.broker

prefix = "least"
named_within_seconds = 15.0
own_roles = [role for role in Role if role is not Role.UP]


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    users = {"admin": "admin-password"} | {role.value: f"{role}-password" for role in Role}
    listeners = SecuredListeners(users=users)
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def acls(secured_kafka: SecuredKafka) -> Iterator[Acls]:
    made = Acls(secured_kafka)
    yield made
    made.close()


@pytest.fixture(scope="module")
def brokers(secured_kafka: SecuredKafka) -> dict[Role, KafkaBroker]:
    return {role: broker_of(secured_kafka, role.value) for role in Role}


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
    acls: Acls, brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    run = RolesWithRights(settings_of_roles(tmp_path, "done", prefix), tmp_path, brokers)
    for role in (Role.CREATOR, Role.READER, *working_roles):
        acls.grant(role.value, rights_of_role(role, run.topics))
    run.create()
    try:
        for role in working_roles:
            run.start(role)
        run.to_their_end()
    finally:
        run.end()
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
