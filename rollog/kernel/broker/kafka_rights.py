"""Which rights a client has on a Kafka cluster, asked without changing anything there.

| of | asked by | what the answer cannot tell |
| --- | --- | --- |
| topics | metadata with authorized operations | CREATE and DESCRIBE_CONFIGS of a topic that is not to be seen |
| groups | leaving the group as a member that it never had, which needs READ | |
| transactional ids | describing the transaction, which needs DESCRIBE | WRITE, where somebody has DESCRIBE alone |

What cannot be told counts as granted: whoever uses it hears of it from the cluster at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.admin import MemberToRemove

from rollog.kernel.broker.kafka_errors import translating
from rollog.kernel.broker.rights import Operation, Resource, Right
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = get_logger("rights")

_coordinator_seconds = 5.0
"""How long a coordinator is waited for that is not there yet, as for a moment on a new cluster."""
_retry_seconds = 0.1
_nobody = "rollog-rights-check"
_denied_code = kafka_errors.TopicAuthorizationFailedError.errno
_told_when_unseen = frozenset(
    {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
)
"""Operations without which a topic that is not to be seen cannot be used."""


def missing_rights(client: Any, rights: Sequence[Right]) -> list[Right]:
    """Those of `rights` that this kafka-python admin client does not have, in their order; none may be of a prefix.

    Raises BrokerError where the cluster cannot be asked.
    """
    topics = sorted({right.name for right in rights if right.resource is Resource.TOPIC})
    missing = set(_missing_of_topics(client, topics, rights))
    deadline = time.monotonic() + _coordinator_seconds
    for right in rights:
        if right.resource is not Resource.TOPIC and _is_denied(client, right, deadline):
            missing.add(right)
    return [right for right in rights if right in missing]


def _missing_of_topics(client: Any, topics: list[str], rights: Iterable[Right]) -> Iterable[Right]:
    if not topics:
        return
    with translating(f"asking for rights on topics {', '.join(topics)}"):
        described = {each["name"]: each for each in client.describe_topics(topics)}
    for right in rights:
        if right.resource is not Resource.TOPIC or right.name not in described:
            continue
        code, allowed = described[right.name]["error_code"], described[right.name]["authorized_operations"]
        if code == _denied_code:
            if right.operation in _told_when_unseen:
                yield right
        # Of what exists nothing can be missing that it takes to make it. Who sees a topic may describe it, so a broker
        # that lists nothing at all does not tell.
        elif allowed and right.operation is not Operation.CREATE and right.operation.value not in allowed:
            yield right


def _is_denied(client: Any, right: Right, deadline: float) -> bool:
    ask: Callable[[], object] = {
        Resource.GROUP: lambda: client.remove_group_members(right.name, [MemberToRemove(member_id=_nobody)]),
        Resource.TRANSACTIONAL_ID: lambda: client.describe_transactions([right.name]),
    }[right.resource]
    while True:
        try:
            ask()
        except kafka_errors.AuthorizationError:
            return True
        except kafka_errors.TransactionalIdNotFoundError:
            return False
        except kafka_errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                log.debug("a right cannot be asked for", right=str(right), error=repr(error))
                return False
        else:
            return False
        # The library never asks again which broker coordinates a name.
        client._manager.cluster._coordinators.clear()  # noqa: SLF001
        time.sleep(_retry_seconds)
