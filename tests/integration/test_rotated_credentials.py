"""Passwords that are changed while a run goes on: roles are started again with the new ones, and nothing is lost."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from support.acls import Acls
from support.roles_as_processes import Processes, longest_seconds
from support.roles_with_rights import RolesWithRights, settings_of_roles, working_roles
from support.secured_kafka import SecuredKafka, SecuredListeners

from rollog.kernel.broker.rights import Role, rights_of_role
from rollog.kernel.errors import BrokerRefused, exit_status_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # kafka-python leaves the socket of a failed handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

prefix = "rotated"
reauthentication_seconds = 3.0
named_within_seconds = 15.0


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[SecuredKafka]:
    users = {"admin": "admin-password"} | {role.value: f"{role}-password" for role in Role}
    listeners = SecuredListeners(users=users, reauthentication_ms=round(reauthentication_seconds * 1000))
    with SecuredKafka(tmp_path_factory.mktemp("secured"), cache_directory, secured=listeners) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def brokers(secured_kafka: SecuredKafka) -> dict[Role, KafkaBroker]:
    return {role: secured_kafka.broker(role.value) for role in Role}


@pytest.fixture
def run(secured_kafka: SecuredKafka, brokers: dict[Role, KafkaBroker], tmp_path: Path) -> RolesWithRights:
    """A run without an end, whose roles have their rights."""
    settings = settings_of_roles(tmp_path, "rotated", prefix).changed(run={"num_steps": 1_000_000})
    made = RolesWithRights(settings, tmp_path, brokers)
    acls = Acls(secured_kafka)
    for role in (Role.CREATOR, Role.READER, *working_roles):
        acls.grant(role.value, rights_of_role(role, made.topics))
    acls.close()
    made.create()
    return made


def test_roles_that_are_started_again_with_new_passwords_go_on_with_the_run(
    run: RolesWithRights, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    processes = Processes(secured_kafka, tmp_path, prefix, run.topics.run)
    worker = processes.start("worker", "rollout", "--name", "worker")
    dispatcher = processes.start("dispatcher", "dispatch")
    try:
        run.start(Role.TRAINER)
        run.wait_for_steps()

        # As docs/security.md says: the new password is in its file, and the role starts again with it.
        secured_kafka.change_password("worker", "next", is_written=True)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=longest_seconds)
        assert worker.returncode == 128 + signal.SIGTERM, said
        worker = processes.start("worker", "rollout", "--name", "worker")
        run.wait_for_steps()

        # Whoever is forgotten ends when the broker wants to know again who connects.
        secured_kafka.change_password("dispatcher", "next")
        said, _ = dispatcher.communicate(timeout=longest_seconds)
        assert dispatcher.returncode == exit_status_configuration, said
        assert "does not take the password of user 'dispatcher'" in said
        secured_kafka.change_password("dispatcher", "next", is_written=True)
        dispatcher = processes.start("dispatcher", "dispatch")
        run.wait_for_steps()

        secured_kafka.change_password("trainer", "next")
        refused = run.wait_for_error(Role.TRAINER, reauthentication_seconds + named_within_seconds)
        assert isinstance(refused, BrokerRefused)
        assert "does not take the password of user 'trainer'" in str(refused)
        secured_kafka.change_password("trainer", "next", is_written=True)
        run.start(Role.TRAINER)
        run.wait_for_steps()
    finally:
        run.end()
        for process in (dispatcher, worker):
            process.kill()
            process.wait()
    report = run.audited()
    assert report.is_clean, "\n".join(report.lines())
