"""The rights of roles as an administrator grants them: kafka-acls commands, Strimzi's KafkaUser, plain data.

Plain data has one entry for each operation, with Kafka's own names, which is what providers of Terraform and scripts
take as well.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.rights import Operation, Resource
from rollog.kernel.broker.yaml_text import is_kubernetes_name, yaml_documents
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rollog.kernel.broker.rights import Right, Role

user_api = "kafka.strimzi.io/v1beta2"
_names_in_tool: Mapping[Operation, str] = {
    Operation.READ: "Read",
    Operation.WRITE: "Write",
    Operation.CREATE: "Create",
    Operation.DELETE: "Delete",
    Operation.DESCRIBE: "Describe",
    Operation.DESCRIBE_CONFIGS: "DescribeConfigs",
}
"""As kafka-acls and Strimzi write them."""
_options: Mapping[Resource, str] = {
    Resource.TOPIC: "--topic",
    Resource.GROUP: "--group",
    Resource.TRANSACTIONAL_ID: "--transactional-id",
}
_strimzi_types: Mapping[Resource, str] = {
    Resource.TOPIC: "topic",
    Resource.GROUP: "group",
    Resource.TRANSACTIONAL_ID: "transactionalId",
}
_longest_common_name = 64
"""The common name in the certificate that Strimzi makes of a KafkaUser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one role gets, under the principal that Kafka knows it by, for example `User:rollog-trainer`."""

    role: Role
    principal: str
    rights: tuple[Right, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How Kafka's tools reach the cluster; `command_config` is a properties file of its administrator."""

    bootstrap_servers: str
    command_config: str | None = None

    @property
    def words(self) -> list[str]:
        """As options."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        return ["--bootstrap-server", self.bootstrap_servers, *config]


def parse_principal(text: str) -> str:
    """`Type:name` as Kafka writes it. Raises ConfigError for anything else, and for everybody at once."""
    kind, separator, name = text.partition(":")
    if not (separator and kind.isalnum() and name) or not text.isprintable() or name == "*":
        raise ConfigError(
            f"{text!r} is no principal: write it as Kafka knows it, for example User:rollog-trainer, or "
            "User:CN=rollog-trainer,O=example for a certificate"
        )
    return text


def kafka_acls_commands(grants: Iterable[Grant], cluster: Cluster, *, is_removed: bool = False) -> list[str]:
    """Shell commands, one for all names of a kind that get the same operations; with `is_removed` to take them away."""
    return [
        shlex.join(_words(grant.principal, rights, cluster, is_removed=is_removed))
        for grant in grants
        for rights in _alike(grant.rights)
    ]


def _words(principal: str, rights: Sequence[Right], cluster: Cluster, *, is_removed: bool) -> Iterator[str]:
    first = rights[0]
    yield from ("kafka-acls", *cluster.words)
    yield from ("--remove", "--force") if is_removed else ("--add",)
    yield from ("--allow-principal", principal)
    for operation in sorted({right.operation for right in rights}):
        yield from ("--operation", _names_in_tool[operation])
    if first.is_prefix:
        yield from ("--resource-pattern-type", "prefixed")
    for name in sorted({right.name for right in rights}):
        yield from (_options[first.resource], name)


def _alike(rights: Iterable[Right]) -> Iterator[list[Right]]:
    """Rights in groups: one kind of resource and pattern, and the same operations on each name."""
    by_name: defaultdict[tuple[Resource, bool, str], list[Right]] = defaultdict(list)
    for right in rights:
        by_name[right.resource, right.is_prefix, right.name].append(right)
    groups: defaultdict[tuple[Resource, bool, tuple[Operation, ...]], list[Right]] = defaultdict(list)
    for (resource, is_prefix, _), of_name in by_name.items():
        groups[resource, is_prefix, tuple(sorted(right.operation for right in of_name))] += of_name
    return iter(groups.values())


def acls_json(grants: Iterable[Grant]) -> str:
    """A list with an object for each ACL, by Kafka's names."""
    return json.dumps([acl for grant in grants for acl in _plain(grant)], indent=2)


def _plain(grant: Grant) -> Iterator[dict[str, str]]:
    for right in grant.rights:
        yield {
            "role": grant.role.value,
            "principal": grant.principal,
            "host": "*",
            "permission_type": "ALLOW",
            "operation": right.operation.value,
            "resource_type": right.resource.name,
            "resource_name": right.name,
            "pattern_type": "PREFIXED" if right.is_prefix else "LITERAL",
        }


def kafka_users(grants: Sequence[Grant], *, cluster: str, authentication: str) -> str:
    """A KafkaUser of Strimzi's for each principal, as YAML; roles that share a principal share it.

    `cluster` is the name of the Kafka resource, `authentication` Strimzi's type. Raises ConfigError for a principal
    that no KafkaUser can have.
    """
    by_principal: defaultdict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        by_principal[grant.principal].append(grant)
    return yaml_documents(
        _kafka_user(principal, of_principal, cluster, authentication)
        for principal, of_principal in by_principal.items()
    )


def _kafka_user(principal: str, grants: Sequence[Grant], cluster: str, authentication: str) -> dict[str, Any]:
    rights = sorted({right for grant in grants for right in grant.rights})
    return {
        "apiVersion": user_api,
        "kind": "KafkaUser",
        "metadata": {
            "name": _user_name(principal),
            "labels": {"strimzi.io/cluster": cluster},
            "annotations": {"rollog/roles": " ".join(grant.role for grant in grants)},
        },
        "spec": {
            "authentication": {"type": authentication},
            "authorization": {"type": "simple", "acls": list(_rules(rights))},
        },
    }


def _rules(rights: Iterable[Right]) -> Iterator[dict[str, Any]]:
    operations: defaultdict[tuple[Resource, str, bool], list[str]] = defaultdict(list)
    for right in rights:
        operations[right.resource, right.name, right.is_prefix].append(_names_in_tool[right.operation])
    for (resource, name, is_prefix), allowed in operations.items():
        yield {
            "resource": {
                "type": _strimzi_types[resource],
                "name": name,
                "patternType": "prefix" if is_prefix else "literal",
            },
            "operations": allowed,
        }


def _user_name(principal: str) -> str:
    name = principal.removeprefix("User:").removeprefix("CN=")
    if not is_kubernetes_name(name) or len(name) > _longest_common_name:
        raise ConfigError(
            f"{principal!r} cannot be the name of a KafkaUser: Strimzi takes User:NAME or User:CN=NAME with a NAME of "
            f"at most {_longest_common_name} of a-z, 0-9, - and ."
        )
    return name
