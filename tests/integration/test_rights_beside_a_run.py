"""Who works beside a run, with the rights of that role alone: a scorer of late rewards; an administrator who prunes it,
and deletes it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.roles_as_processes import Processes
from support.roles_with_rights import RolesWithRights, settings_of_roles, working_roles
from support.secured_kafka import Listener, SecuredKafka
from support.waiting import wait_until

from producers.rewards.late import late_rewards
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.rights import Role, rights_of_role, rights_under_prefix
from rollog.kernel.errors import exit_status_configuration
from rollog.kernel.runs import read_runs
from schemas import Sample, sample_id
from schemas.codec import decode_as

if TYPE_CHECKING:
    from pathlib import Path

    from support.acls import Acls

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

prefix = "administered"


@pytest.fixture(scope="module")
def brokers(kafka_of_roles: SecuredKafka) -> dict[Role, KafkaBroker]:
    """Each role under its own name, but for the super user in the place of `up`."""
    return {role: kafka_of_roles.broker(role.value) for role in Role} | {Role.UP: kafka_of_roles.broker()}


def test_a_run_that_was_done_is_pruned_and_deleted_with_the_rights_of_an_administrator_of_it(
    kafka_of_roles: SecuredKafka, acls: Acls, brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    run = RolesWithRights(settings_of_roles(tmp_path, "done", prefix), tmp_path, brokers)
    for role in (Role.CREATOR, Role.ADMINISTRATOR, *working_roles):
        acls.grant(role.value, rights_of_role(role, run.topics))
    run.create()
    run.work_to_their_end()
    administrator = Processes(kafka_of_roles, tmp_path, prefix, "done")

    status, said = administrator.call("administrator", "topics", "prune", "--keep-steps", "1")
    assert status == 0, said
    places = [TopicPartition(run.topics.samples, number) for number in range(2)]
    with brokers[Role.UP].consumer(client_id="look") as consumer:
        assert sum(consumer.beginning_offsets(places).values()) > 0, said

    status, said = administrator.call("administrator", "runs", "delete", "--yes")
    assert status == 0, said
    assert "run done is deleted" in said
    with brokers[Role.UP].admin() as admin:
        # Kafka lists a topic for a moment after it is deleted.
        wait_until(
            lambda: not any(name.startswith(f"{prefix}.done.") for name in admin.list_topics()),
            message="the topics of the run are gone",
        )
    assert "done" not in read_runs(brokers[Role.UP], prefix)


def test_a_run_whose_store_is_anothers_too_is_deleted_by_who_may_read_that_ones_notices(
    kafka_of_roles: SecuredKafka, acls: Acls, brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    runs = [
        RolesWithRights(settings_of_roles(tmp_path, name, prefix), tmp_path, brokers)
        for name in ("first", "second")
    ]
    for run in runs:
        acls.grant("creator", rights_of_role(Role.CREATOR, run.topics))
        run.create()
    acls.clear("administrator")
    acls.grant("administrator", rights_of_role(Role.ADMINISTRATOR, runs[0].topics))
    administrator = Processes(kafka_of_roles, tmp_path, prefix, "first")

    status, said = administrator.call("administrator", "runs", "delete", "--yes")
    assert status == exit_status_configuration, said
    assert (
        f"run second names the store of run first, too, and {prefix}.second.weights may not be read" in said
    )
    assert f"`rollog topics acls --prefix {prefix} --principal administrator=User:administrator`" in said
    assert "nothing was deleted" in said
    assert "first" in read_runs(brokers[Role.UP], prefix)

    acls.grant("administrator", rights_under_prefix(Role.ADMINISTRATOR, prefix))
    status, said = administrator.call("administrator", "runs", "delete", "--yes")
    assert status == 0, said
    assert set(read_runs(brokers[Role.UP], prefix)) & {"first", "second"} == {"second"}


def test_samples_are_scored_late_with_the_rights_of_a_scorer(
    kafka_of_roles: SecuredKafka, acls: Acls, brokers: dict[Role, KafkaBroker], tmp_path: Path
) -> None:
    late = {"late": True, "deadline_seconds": 600}
    run = RolesWithRights(settings_of_roles(tmp_path, "scored", prefix, reward=late), tmp_path, brokers)
    for role in (Role.CREATOR, Role.READER, Role.SCORER, *working_roles):
        acls.grant(role.value, rights_of_role(role, run.topics, run.settings.optional_topics))
    run.create()
    stop, errors = threading.Event(), list[BaseException]()
    rewards = late_rewards(
        kafka_of_roles.address_of(Listener.SCRAM_TLS),
        run="scored",
        prefix=prefix,
        security=kafka_of_roles.table("scorer"),
    )

    def score() -> None:
        try:
            with rewards, brokers[Role.SCORER].consumer(client_id="scorer") as samples:
                samples.assign({TopicPartition(run.topics.samples, number): 0 for number in range(2)})
                while not stop.is_set():
                    for record in samples.poll(0.2):
                        sample = decode_as(Sample, record.value or b"")
                        name = sample_id(sample.group_id, sample.replica, sample.attempt)
                        rewards.send(name, float(sample.replica))
                    rewards.flush()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    scorer = threading.Thread(target=score)
    scorer.start()
    try:
        for role in working_roles:
            run.start(role)
        run.to_their_end()
    finally:
        run.end()
        stop.set()
        scorer.join()
    assert errors == []
    report = run.audited()
    assert report.is_clean, "\n".join(report.lines())
