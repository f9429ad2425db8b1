"""Which schemas of a run stand under which subjects of the registry.

| strategy | topic with one type of record | topic with several |
| --- | --- | --- |
| `topic` | `<topic>-value`: Confluent's TopicNameStrategy | `<topic>-<record>`: its TopicRecordNameStrategy |
| `record` | `<record>`: its RecordNameStrategy | the same |

`<record>` is the full name, `rollog.Sample`. With `record` all runs share their subjects; with `topic` each run has
its own. Under a subject stand the releases that a writer may use, oldest first.

    topic strategy:   rollog.first.samples-value      Sample of release 1, 2, and the one in force
                      rollog.first.tasks-rollog.Stop  Stop of release 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollog.kernel.broker.records_by_topic import records_by_topic
from schemas.writer_choice import older_writers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.catalogue import Catalogue, Schema

Strategy = Literal["topic", "record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A subject and the schemas that stand under it, oldest first. `topic` is where its records are written."""

    name: str
    topic: str
    schemas: Sequence[Schema]


def subjects_of(topics: Sequence[str], strategy: Strategy, catalogue: Catalogue) -> list[Subject]:
    """The subjects of the topics of one run, named in full, in the order of the topics."""
    return [subject for topic in topics for subject in _subjects_of_topic(topic, strategy, catalogue)]


def _subjects_of_topic(topic: str, strategy: Strategy, catalogue: Catalogue) -> Iterator[Subject]:
    records = records_by_topic[topic.rsplit(".", 1)[-1]]
    for record in records:
        current = catalogue.current[record.__name__]
        yield Subject(
            name=_name(topic, _full_name(current), strategy, is_alone=len(records) == 1),
            topic=topic,
            schemas=[older.schema for older in older_writers(catalogue, current.name)] + [current],
        )


def _name(topic: str, record: str, strategy: Strategy, *, is_alone: bool) -> str:
    if strategy == "record":
        return record
    return f"{topic}-value" if is_alone else f"{topic}-{record}"


def _full_name(schema: Schema) -> str:
    return f"{schema.definition['namespace']}.{schema.name}"
