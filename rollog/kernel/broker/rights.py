"""What each role may do on a cluster: one declaration, from which ACLs, checks at start and the page of rights follow.

A role has the rights of its part in one run and no others. Kafka lets nobody in who has none, so whatever stands here
is needed: tests take each right away, and let each role do its part with these rights alone.

| what | why it is needed |
| --- | --- |
| READ of a topic that a role writes in transactions | it asks the partitions whether earlier transactions have ended |
| DESCRIBE_CONFIGS of topics | it compares them with what the run needs, and learns the largest record |
| READ of a group | committing offsets, for ordinary tools to see |
| WRITE of a transactional id | fencing its predecessor, and transactions |

WRITE and READ of anything include DESCRIBE. Nothing is needed on the cluster itself.

Two runs never share a name, and no name of a run or prefix holds a dot or a slash: `<prefix>.<run>.` and
`<prefix>.runs/` are exact as prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import (
    OptionalTopic,
    RunTopics,
    manifest_transactional_ids,
    reinjection_transactional_ids,
    runs_topic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


class Role(StrEnum):
    """Who connects to the cluster, each as a principal of its own where that is wanted."""

    DISPATCHER = "dispatcher"
    """`rollog dispatch`."""
    WORKER = "worker"
    """`rollog rollout`, every worker of a run."""
    TRAINER = "trainer"
    """`rollog train`, its first rank; the others do not connect. `rollog weights prune`."""
    CREATOR = "creator"
    """Whoever makes runs: `rollog topics create` and `check`."""
    READER = "reader"
    """Whatever reads a run: `rollog watch`, `audit`, `replay`, `verify`, `lineage`, `report`, `export`."""
    SCORER = "scorer"
    """A program outside of the run that scores samples (`reward.late`)."""
    ADMINISTRATOR = "administrator"
    """`rollog topics prune`, `rollog runs delete` and `rollog dead-letters --reinject`."""
    UP = "up"
    """`rollog up` and `rollog resume`, which make a run, start its roles and follow it under one principal."""


class Resource(StrEnum):
    """Kinds of what Kafka guards."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"


class Operation(StrEnum):
    """What may be done, by Kafka's names."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One operation on one resource; with `is_prefix` on all whose names begin so."""

    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.is_prefix else ''}"


roles_of_one_run = frozenset({Role.DISPATCHER, Role.WORKER, Role.TRAINER, Role.SCORER})
"""Those whose rights cannot be told by the prefix of all runs: ACLs know no suffixes."""

_parts_of_up = (Role.CREATOR, Role.DISPATCHER, Role.WORKER, Role.TRAINER, Role.READER)
_read = (Operation.READ, Operation.DESCRIBE_CONFIGS)
_write = (Operation.WRITE, Operation.DESCRIBE_CONFIGS)
_look = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_include_describe = (Operation.READ, Operation.WRITE, Operation.DELETE)


def rights_of_role(
    role: Role, topics: RunTopics, optional: Collection[OptionalTopic] = ()
) -> tuple[Right, ...]:
    """What `role` needs for its part in one run, with the topics that the run has besides.

    Sorted, and none that another one includes.
    """
    return _sorted(_rights(role, topics, optional))


def rights_under_prefix(role: Role, prefix: str) -> tuple[Right, ...]:
    """What `role` needs for all runs under `prefix`, those to come included; as `rights_of_role`.

    Raises ValueError for `roles_of_one_run`.
    """
    names = f"{prefix}."
    match role:
        case Role.CREATOR:
            return _sorted(
                [
                    *_on(names, (Operation.CREATE, *_look), is_prefix=True),
                    *_on(runs_topic(prefix), (*_read, *_write)),
                    _right_of_id(manifest_transactional_ids(prefix), is_prefix=True),
                ]
            )
        case Role.READER:
            return _sorted(_on(names, _read, is_prefix=True))
        case Role.UP:
            return _sorted(
                [
                    *_on(names, (*_read, Operation.WRITE, Operation.CREATE), is_prefix=True),
                    Right(Resource.GROUP, names, Operation.READ, is_prefix=True),
                    _right_of_id(names, is_prefix=True),
                ]
            )
        case Role.ADMINISTRATOR:
            return _sorted(
                [
                    *_on(names, (*_read, Operation.WRITE, Operation.DELETE), is_prefix=True),
                    _right_of_id(manifest_transactional_ids(prefix), is_prefix=True),
                    _right_of_id(reinjection_transactional_ids(prefix), is_prefix=True),
                ]
            )
        case _:
            raise ValueError(f"the rights of role {role} are those of one run")


def _rights(role: Role, topics: RunTopics, optional: Collection[OptionalTopic]) -> Iterator[Right]:
    match role:
        case Role.DISPATCHER:
            yield from _dispatcher(topics, optional)
        case Role.WORKER:
            yield from _worker(topics, optional)
        case Role.TRAINER:
            yield from _trainer(topics, optional)
        case Role.CREATOR:
            yield from _creator(topics)
        case Role.READER:
            yield from _reads_all(topics)
        case Role.SCORER:
            # The manifest says how records of the run are framed.
            yield from _on(runs_topic(topics.prefix), _read)
            yield Right(Resource.TOPIC, topics.rewards, Operation.WRITE)
            yield Right(Resource.TOPIC, topics.samples, Operation.READ)
        case Role.ADMINISTRATOR:
            yield from _administrator(topics)
        case Role.UP:
            for part in _parts_of_up:
                yield from _rights(part, topics, optional)


def _dispatcher(topics: RunTopics, optional: Collection[OptionalTopic]) -> Iterator[Right]:
    yield from _on(runs_topic(topics.prefix), _read)
    yield from _on(topics.steps, _read)
    for written_and_read in (
        topics.tasks,
        topics.control,
        topics.workers,
        topics.samples,
        topics.evaluations,
        topics.dead_letters,
    ):
        yield from _on(written_and_read, (*_read, *_write))
    if OptionalTopic.TURNS in optional:
        yield from _on(topics.turns, _look)
    yield _right_of_id(topics.dispatcher_transactional_id)


def _worker(topics: RunTopics, optional: Collection[OptionalTopic]) -> Iterator[Right]:
    for read in (runs_topic(topics.prefix), topics.tasks, topics.control, topics.weights, topics.steps):
        yield from _on(read, _read)
    for written in (topics.samples, topics.evaluations, topics.workers, topics.dead_letters):
        yield from _on(written, _write)
    if OptionalTopic.TURNS in optional:
        yield from _on(topics.turns, (*_read, *_write))
    yield Right(Resource.GROUP, topics.worker_group, Operation.READ)


def _trainer(topics: RunTopics, optional: Collection[OptionalTopic]) -> Iterator[Right]:
    for read in (runs_topic(topics.prefix), topics.samples, topics.tasks):
        yield from _on(read, _read)
    for written_and_read in (topics.steps, topics.weights, topics.control, topics.dead_letters):
        yield from _on(written_and_read, (*_read, *_write))
    yield from _on(topics.workers, _write)
    if OptionalTopic.REWARDS in optional:
        yield from _on(topics.rewards, _read)
    yield Right(Resource.GROUP, topics.trainer_group, Operation.READ)
    yield _right_of_id(topics.trainer_transactional_id)


def _creator(topics: RunTopics) -> Iterator[Right]:
    yield from _on(_names(topics), (Operation.CREATE, *_look), is_prefix=True)
    yield from _on(runs_topic(topics.prefix), (Operation.CREATE, *_read, *_write))
    yield _right_of_id(topics.manifest_transactional_id)


def _administrator(topics: RunTopics) -> Iterator[Right]:
    yield from _reads_all(topics)
    yield from _on(_names(topics), (Operation.DELETE,), is_prefix=True)
    yield from _on(topics.samples, _write)
    yield from _on(topics.evaluations, _write)
    yield from _on(runs_topic(topics.prefix), _write)
    yield _right_of_id(topics.manifest_transactional_id)
    yield _right_of_id(topics.reinjection_transactional_id)


def _reads_all(topics: RunTopics) -> Iterator[Right]:
    yield from _on(_names(topics), _read, is_prefix=True)
    yield from _on(runs_topic(topics.prefix), _read)


def _names(topics: RunTopics) -> str:
    return f"{topics.prefix}.{topics.run}."


def _on(topic: str, operations: Iterable[Operation], *, is_prefix: bool = False) -> Iterator[Right]:
    return (Right(Resource.TOPIC, topic, operation, is_prefix) for operation in operations)


def _right_of_id(transactional_id: str, *, is_prefix: bool = False) -> Right:
    return Right(Resource.TRANSACTIONAL_ID, transactional_id, Operation.WRITE, is_prefix)


def _sorted(rights: Iterable[Right]) -> tuple[Right, ...]:
    """Sorted, and none that another one includes."""
    found = set(rights)
    prefixes = [right for right in found if right.is_prefix]
    return tuple(sorted(right for right in found if not _is_included(right, found, prefixes)))


def _is_included(right: Right, found: Collection[Right], prefixes: Iterable[Right]) -> bool:
    if right.operation is Operation.DESCRIBE:
        stronger = (replace(right, operation=operation) for operation in _include_describe)
        if any(each in found or _is_under(each, prefixes) for each in stronger):
            return True
    return not right.is_prefix and _is_under(right, prefixes)


def _is_under(right: Right, prefixes: Iterable[Right]) -> bool:
    return any(
        each.resource is right.resource
        and each.operation is right.operation
        and right.name.startswith(each.name)
        for each in prefixes
    )
