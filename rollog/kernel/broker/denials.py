"""What a cluster does not let a role do, said at once and with the commands that grant it.

A role asks at its start for all rights of its declaration (`rollog.kernel.broker.rights`), so that one message names
all that is missing. Of rights that are taken away later the first request that is refused tells; then all are asked for
once more, and the message names the others, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.broker.acls import Cluster, Grant, kafka_acls_commands
from rollog.kernel.broker.rights import Resource, Right, rights_of_role
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.errors import BrokerError, BrokerTimeout, NotAuthorized
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.rights import Role
    from rollog.kernel.broker.topics import OptionalTopic, RunTopics

log = get_logger("rights")

_unknown_principal = "User:NAME"


def require_rights(
    broker: Broker, role: Role, topics: RunTopics, optional: Collection[OptionalTopic] = ()
) -> None:
    """Raise NotAuthorized, naming every right that this client lacks for `role`, unless it has them all.

    What does not exist yet, and what the cluster does not tell, counts as granted.
    """
    with broker.admin() as admin:
        missing = admin.missing_rights(_named_rights(role, topics, optional))
    if missing:
        raise NotAuthorized(_told(broker, role, topics, missing))


@contextmanager
def naming_rights(
    broker: Broker, role: Role, topics: RunTopics, optional: Collection[OptionalTopic] = ()
) -> Iterator[None]:
    """Within this block a refusal by the cluster becomes NotAuthorized that names role, rights and commands.

    So does a time-out, where rights are missing: a client library may give up what follows a refused record.
    """
    try:
        yield
    except (NotAuthorized, BrokerTimeout) as refused:
        try:
            require_rights(broker, role, topics, optional)
        except BrokerError as named:
            if not isinstance(named, NotAuthorized):
                log.warning("the cluster does not say which rights are missing", error=named)
                raise refused from named
            raise named from refused
        raise


def _named_rights(role: Role, topics: RunTopics, optional: Collection[OptionalTopic]) -> list[Right]:
    """The rights of a role, those of prefixes on each topic of the run."""
    names = run_topic_names(topics, optional)
    named: list[Right] = []
    for right in rights_of_role(role, topics, optional):
        if not right.is_prefix:
            named.append(right)
            continue
        assert right.resource is Resource.TOPIC, right  # nothing else of one run has a prefix
        named += [
            Right(right.resource, name, right.operation) for name in names if name.startswith(right.name)
        ]
    return named


def _told(broker: Broker, role: Role, topics: RunTopics, missing: Sequence[Right]) -> str:
    principal = broker.principal or _unknown_principal
    grant = Grant(role=role, principal=principal, rights=tuple(missing))
    commands = kafka_acls_commands([grant], Cluster(bootstrap_servers=broker.address))
    prefix = "" if topics.prefix == "rollog" else f" --set run.prefix={topics.prefix}"
    who = broker.principal or "this client"
    return "\n".join(
        [
            f"{who} may not do what role {role} does in run {topics.run} at {broker.address}; missing is",
            *(f"  {right}" for right in missing),
            "let an administrator of the cluster grant that, then start it again:",
            *(f"  {command}" for command in commands),
            f"`rollog topics acls --run {topics.run}{prefix} --principal {role}={principal}` prints all it needs",
        ]
    )
