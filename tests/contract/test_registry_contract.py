"""What rollog needs of a schema registry: the small one of the tests and a real one answer alike."""

from __future__ import annotations

import json
import urllib.request
import uuid
from typing import TYPE_CHECKING

import pytest
from support.apicurio import apicurio
from support.small_registry import small_registry

from rollog.kernel.broker.records_by_topic import records_by_topic
from rollog.kernel.errors import RegistryRefused
from rollog.kernel.registry.client import RegistryAddress, RegistryClient
from rollog.kernel.registry.registration import compatibility, register_subjects, registered_schemas
from rollog.kernel.registry.schema_ids import SchemaIds
from rollog.kernel.registry.subjects import Subject, subjects_of
from schemas.catalogue import load_catalogue, schema_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemas.catalogue import Definition


@pytest.fixture(scope="module")
def small_url() -> Iterator[str]:
    with small_registry() as registry:
        yield registry.url


@pytest.fixture(scope="module")
def apicurio_url(cache_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio(cache_directory, tmp_path_factory.mktemp("apicurio")) as url:
        yield url


@pytest.fixture(params=["small", pytest.param("apicurio", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest) -> RegistryClient:
    url = request.getfixturevalue(f"{request.param}_url")
    return RegistryClient(RegistryAddress(url=url, timeout_seconds=20.0))


@pytest.fixture
def prefix() -> str:
    return f"rollog-test.run-{uuid.uuid4().hex[:12]}"


def a_definition(name: str, *fields: Definition) -> Definition:
    return {"type": "record", "name": name, "namespace": "test", "fields": list(fields)}


number = {"name": "number", "type": "int"}
text = {"name": "text", "type": "string"}
text_with_default = {**text, "default": ""}


def test_a_schema_is_found_by_what_it_was_registered_with(client: RegistryClient, prefix: str) -> None:
    first, second = a_definition("First", number), a_definition("Second", text)
    assert client.registered_id(f"{prefix}-value", first) is None
    schema_id = client.register(f"{prefix}-value", first)
    assert client.register(f"{prefix}-value", first) == schema_id
    assert client.registered_id(f"{prefix}-value", first) == schema_id
    assert client.registered_id(f"{prefix}-value", second) is None
    assert client.registered_id(f"{prefix}-other", first) is None
    assert json.loads(client.schema_of(schema_id) or "") == first


def test_the_newest_schema_of_a_subject_is_there_for_writers_in_other_languages(
    client: RegistryClient, prefix: str
) -> None:
    client.register(f"{prefix}-value", a_definition("Grows", number))
    newest = client.register(f"{prefix}-value", a_definition("Grows", number, text_with_default))
    with urllib.request.urlopen(f"{client.url}/subjects/{prefix}-value/versions/latest") as response:
        answer = json.load(response)
    assert (answer["id"], answer["version"]) == (newest, 2)
    assert json.loads(answer["schema"]) == a_definition("Grows", number, text_with_default)


def test_two_subjects_share_the_id_of_one_schema(client: RegistryClient, prefix: str) -> None:
    shared = a_definition(f"Shared{uuid.uuid4().hex}", number)
    assert client.register(f"{prefix}-a", shared) == client.register(f"{prefix}-b", shared)


def test_an_id_that_nobody_has_is_none(client: RegistryClient) -> None:
    assert client.schema_of(2**31 - 1) is None


def test_what_breaks_compatibility_is_refused_with_a_reason(client: RegistryClient, prefix: str) -> None:
    subject = f"{prefix}-value"
    client.register(subject, a_definition("Grows", number))
    client.set_compatibility(subject, compatibility)
    assert client.compatibility(subject) == compatibility
    assert client.incompatibility(subject, a_definition("Grows", number, text_with_default)) is None
    client.register(subject, a_definition("Grows", number, text_with_default))
    broken = a_definition("Grows", number, text)
    assert client.incompatibility(subject, a_definition("Grows", {"name": "number", "type": "string"}))
    with pytest.raises(RegistryRefused, match="refuses"):
        client.register(subject, a_definition("Grows", {"name": "number", "type": "string"}))
    assert client.registered_id(subject, broken) is None


def test_a_subject_that_is_not_there_has_no_level_and_nothing_against_a_schema(
    client: RegistryClient, prefix: str
) -> None:
    assert client.compatibility(f"{prefix}-value") is None
    assert client.incompatibility(f"{prefix}-value", a_definition("Any", number)) is None


@pytest.mark.parametrize("strategy", ["topic", "record"])
def test_all_schemas_of_a_run_are_registered_once_and_found_again(
    client: RegistryClient, prefix: str, strategy: str
) -> None:
    topics = [f"{prefix}.{name}" for name in records_by_topic if name != "runs"]
    subjects = subjects_of(topics, "topic" if strategy == "topic" else "record", load_catalogue())
    registered = register_subjects(client, subjects)
    again = register_subjects(client, subjects)
    assert [each.schema_id for each in again] == [each.schema_id for each in registered]
    found = registered_schemas(client, subjects)
    assert [(each.subject.name, each.schema_id) for each in found] == [
        (each.subject.name, each.schema_id) for each in registered
    ]
    assert {client.compatibility(subject.name) for subject in subjects} == {compatibility}
    ids = SchemaIds(client, subjects)
    for each in found:
        assert ids.fingerprint_of(each.schema_id) == each.schema.fingerprint
        assert ids.id_on(each.subject.topic, each.schema.fingerprint) == each.schema_id


def test_a_subject_of_somebody_else_is_refused_by_name(client: RegistryClient, prefix: str) -> None:
    schema = schema_from(a_definition("Ours", number))
    subject = Subject(name=f"{prefix}-value", topic=prefix, schemas=[schema])
    client.register(subject.name, a_definition("Ours", {"name": "number", "type": "string"}))
    client.set_compatibility(subject.name, compatibility)
    with pytest.raises(RegistryRefused, match=rf"Ours .* cannot stand under subject {subject.name}"):
        register_subjects(client, [subject])
    with pytest.raises(RegistryRefused, match=rf"{subject.name}: Ours .* is refused as incompatible"):
        registered_schemas(client, [subject])


def test_what_is_not_registered_is_named_with_the_remedy(client: RegistryClient, prefix: str) -> None:
    schema = schema_from(a_definition("Ours", number))
    subject = Subject(name=f"{prefix}-value", topic=prefix, schemas=[schema])
    with pytest.raises(RegistryRefused, match=r"Ours .*; register it with `rollog topics schemas register`"):
        registered_schemas(client, [subject])


def test_a_deleted_subject_is_gone_and_can_be_registered_again(client: RegistryClient, prefix: str) -> None:
    first, other = a_definition("First", number), a_definition("First", {"name": "number", "type": "string"})
    name, kept = f"{prefix}.first-value", f"{prefix}.second-value"
    shared = client.register(name, first)
    client.set_compatibility(name, compatibility)
    assert client.register(kept, first) == shared
    assert client.subjects(f"{prefix}.") == [name, kept]
    assert client.delete(name)
    assert client.subjects(f"{prefix}.") == [kept]
    assert client.registered_id(name, first) is None
    assert client.registered_id(kept, first) == shared
    assert json.loads(client.schema_of(shared) or "") == first
    assert not client.delete(name)
    assert client.compatibility(name) is None
    # What stood there before binds nobody: the name of a run can be used again.
    again = client.register(name, other)
    assert client.registered_id(name, other) == again
    assert json.loads(client.schema_of(again) or "") == other
    assert client.register(name, first) == shared
