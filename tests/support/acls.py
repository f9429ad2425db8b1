"""ACLs of a secured broker, which its super user makes and takes away."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from support.secured_kafka import Listener
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollog.kernel.broker.rights import Right
    from support.secured_kafka import SecuredKafka

_visible_seconds = 20.0


class Acls:
    """What a call changes is in force when it returns."""

    def __init__(self, kafka: SecuredKafka) -> None:
        self._client = KafkaAdminClient(
            bootstrap_servers=[kafka.address_of(Listener.SCRAM_TLS)],
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="admin",
            sasl_plain_password=kafka.secured.users["admin"],
            ssl_cafile=str(kafka.authority.path),
        )

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Allow `User:user` all of `rights`."""
        made = self._client.create_acls([_acl(user, right) for right in rights])
        assert not made["failed"], made["failed"]
        for right in rights:
            self._await(user, right, is_there=True)

    def take_away(self, user: str, rights: Iterable[Right]) -> None:
        """Delete these ACLs of `User:user`, which are there."""
        self._client.delete_acls([_filter(user, right) for right in rights])
        for right in rights:
            self._await(user, right, is_there=False)

    def clear(self, user: str) -> None:
        """Delete all ACLs of `User:user`."""
        everything = ACLFilter(
            principal=f"User:{user}",
            host=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        self._client.delete_acls([everything])
        wait_until(
            lambda: not self._client.describe_acls(everything)[0], _visible_seconds, f"no ACL of {user}"
        )

    @contextmanager
    def without(self, user: str, right: Right) -> Iterator[None]:
        """`User:user` does not have `right` within this block."""
        self.take_away(user, [right])
        try:
            yield
        finally:
            self.grant(user, [right])

    def _await(self, user: str, right: Right, *, is_there: bool) -> None:
        wanted = _filter(user, right)
        wait_until(
            lambda: bool(self._client.describe_acls(wanted)[0]) is is_there,
            _visible_seconds,
            f"{right} of {user} to be {'granted' if is_there else 'gone'}",
        )


def _acl(user: str, right: Right) -> ACL:
    return ACL(
        principal=f"User:{user}",
        host="*",
        operation=ACLOperation[right.operation.name],
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(ResourceType[right.resource.name], right.name, _pattern(right)),
    )


def _filter(user: str, right: Right) -> ACLFilter:
    return ACLFilter(
        principal=f"User:{user}",
        host="*",
        operation=ACLOperation[right.operation.name],
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePatternFilter(
            ResourceType[right.resource.name], right.name, _pattern(right)
        ),
    )


def _pattern(right: Right) -> ACLResourcePatternType:
    return ACLResourcePatternType.PREFIXED if right.is_prefix else ACLResourcePatternType.LITERAL
