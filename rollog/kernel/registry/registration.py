"""The subjects of a run in the registry: registered when it is created, compared when somebody joins it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import RegistryRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.registry.client import RegistryClient
    from rollog.kernel.registry.subjects import Subject
    from schemas.catalogue import Schema

compatibility = "BACKWARD_TRANSITIVE"
"""Level that a subject gets where it has none: whoever reads with the newest schema reads every older record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema, the subject it stands under, and its id in the registry."""

    subject: Subject
    schema: Schema
    schema_id: int


def register_subjects(client: RegistryClient, subjects: Sequence[Subject]) -> list[RegisteredSchema]:
    """Register every schema, oldest first. What is registered already stays as it is, and needs no right to write.

    Raises RegistryRefused, with the registry's reason, where one is not compatible, RegistryUnreachable.
    """
    return [found for subject in _each_once(subjects) for found in _register(client, subject)]


def registered_schemas(client: RegistryClient, subjects: Sequence[Subject]) -> list[RegisteredSchema]:
    """Every schema with its id. Changes nothing.

    Raises RegistryRefused, naming every schema that is not registered and whether it could be, RegistryUnreachable.
    """
    found: list[RegisteredSchema] = []
    missing: list[str] = []
    for subject in _each_once(subjects):
        for schema in subject.schemas:
            schema_id = client.registered_id(subject.name, schema.definition)
            if schema_id is None:
                missing.append(_missing(client, subject, schema))
            else:
                found.append(RegisteredSchema(subject=subject, schema=schema, schema_id=schema_id))
    if missing:
        raise RegistryRefused(
            f"schemas of this run are not in the registry at {client.url}:\n"
            + "\n".join(f"  {line}" for line in missing)
        )
    return found


def _register(client: RegistryClient, subject: Subject) -> list[RegisteredSchema]:
    found: list[RegisteredSchema] = []
    has_level = False
    for schema in subject.schemas:
        schema_id = client.registered_id(subject.name, schema.definition)
        if schema_id is None:
            schema_id = _register_one(client, subject, schema)
            # Only now: of a subject without a schema no registry has to know a level.
            if not has_level and client.compatibility(subject.name) in {None, "NONE"}:
                client.set_compatibility(subject.name, compatibility)
            has_level = True
        found.append(RegisteredSchema(subject=subject, schema=schema, schema_id=schema_id))
    return found


def _register_one(client: RegistryClient, subject: Subject, schema: Schema) -> int:
    try:
        return client.register(subject.name, schema.definition)
    except RegistryRefused as error:
        raise RegistryRefused(
            f"schema {_described(schema)} cannot stand under subject {subject.name}: {error}"
        ) from error


def _missing(client: RegistryClient, subject: Subject, schema: Schema) -> str:
    reason = client.incompatibility(subject.name, schema.definition)
    if reason is None:
        return f"{subject.name}: {_described(schema)}; register it with `rollog topics schemas register`"
    return (
        f"{subject.name}: {_described(schema)} is refused as incompatible ({reason}); look at what stands under the "
        "subject, or name another prefix, run or registry.subjects"
    )


def _described(schema: Schema) -> str:
    return f"{schema.name} (fingerprint {schema.fingerprint.hex()})"


def _each_once(subjects: Sequence[Subject]) -> list[Subject]:
    """With the strategy `record` samples and evaluations share a subject."""
    return list({subject.name: subject for subject in subjects}.values())
