"""A record is written with the oldest release that holds all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from schemas import (
    Cancel,
    CancelReason,
    FinishReason,
    Kind,
    RoleStatus,
    RunRole,
    Sample,
    Status,
    TurnSpan,
    WeightVersion,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.catalogue import load_catalogue, schema_from
from schemas.codec import decode, encode
from schemas.samples import Segment
from schemas.writer_choice import _fitting

if TYPE_CHECKING:
    from schemas import Record


def release_of(record: Record) -> int | None:
    """The oldest release whose schema the record is written with; None for the schema in force alone."""
    fingerprint, name = encode(record)[2:10], type(record).__name__
    for number, release in sorted(load_catalogue().releases.items()):
        if name in release and release[name].fingerprint == fingerprint:
            return number
    return None


def a_sample() -> Sample:
    return Sample(
        sample_id="g7.r1.a0",
        task_id="3-41",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=3,
        grant_id="",
        worker_id="w",
        group_id=7,
        replica=1,
        attempt=0,
        prompt_id="p",
        token_ids=int32_array([1, 2]),
        behaviour_logprobs=float32_array([-1, -2]),
        loss_mask=uint8_array([1, 1]),
        segments=(Segment(version=0, weights_digest="ab", start=0, end=2),),
    )


def test_a_sample_that_uses_nothing_new_is_written_as_the_first_release_did() -> None:
    assert release_of(a_sample()) == 1


def test_a_sample_with_turn_rewards_needs_the_release_that_had_them_first() -> None:
    assert release_of(replace(a_sample(), turn_rewards=(1.0,))) == 2


def test_a_sample_of_a_session_needs_the_third_release() -> None:
    turn = TurnSpan(number=0, sequence=0, start=0, end=2, finish_reason=FinishReason.STOP)
    for sample in (replace(a_sample(), turns=(turn,)), replace(a_sample(), awaits_reward=True)):
        assert release_of(sample) == 3
        assert decode(encode(sample)) == sample


def test_a_notice_of_one_file_is_written_as_ever_and_one_of_a_manifest_is_refused_by_older_readers() -> None:
    notice = WeightVersion(version=1, sha256="ab" * 32, name="v000001-abab.safetensors", num_bytes=8)
    assert release_of(notice) == 1
    manifest = replace(notice, format="manifest-1", manifest_sha256="cd" * 32, stored_bytes=9)
    assert release_of(manifest) == 4
    assert decode(encode(manifest)) == manifest


def test_every_record_is_in_the_newest_release() -> None:
    """What is in none may be changed by anybody, and logs that hold it could not be read any more."""
    catalogue = load_catalogue()
    assert set(catalogue.releases[max(catalogue.releases)]) == set(catalogue.current)


def test_a_record_that_never_changed_and_one_that_a_release_lacks_have_one_schema() -> None:
    assert release_of(Cancel(task_id="1-2", epoch=1, grant_id="g", reason=CancelReason.STALE)) == 1
    assert release_of(RoleStatus(role=RunRole.TRAINER, role_id="t")) == 2


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Thing", "namespace": "rollog", "fields": list(fields)}


def fits(new_type: Any, old_type: Any, value: Any) -> bool:
    new, old = record({"name": "it", "type": new_type}), record({"name": "it", "type": old_type})
    schema_from(new), schema_from(old)
    found = _fitting(new, old, {}, {})
    return found is None or found({"it": value})


def part(*more: dict[str, Any], name: str = "Part") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "size", "type": "long"}, *more]}


colour = {"name": "colour", "type": "string", "default": "red"}


@pytest.mark.parametrize("colour_of_it", ["red", "blue"])
def test_a_new_field_counts_at_every_depth(colour_of_it: str) -> None:
    new, old, value = part(colour), part(), {"size": 1, "colour": colour_of_it}
    is_default = colour_of_it == "red"
    assert fits(new, old, value) is is_default
    assert fits(["null", new], ["null", old], value) is is_default
    assert fits(["null", new], ["null", old], None)
    assert fits({"type": "array", "items": new}, {"type": "array", "items": old}, [value]) is is_default
    assert fits({"type": "map", "values": new}, {"type": "map", "values": old}, {"a": value}) is is_default
    both_new, both_old = [new, part(name="Other")], [old, part(name="Other")]
    assert fits(both_new, both_old, ("rollog.Part", value)) is is_default
    assert fits(both_new, both_old, ("rollog.Other", {"size": 1}))


def test_a_type_that_is_named_again_is_compared_again() -> None:
    new = record({"name": "one", "type": part(colour)}, {"name": "two", "type": "Part"})
    old = record({"name": "one", "type": part()}, {"name": "two", "type": "Part"})
    fitting = _fitting(new, old, {}, {})
    assert fitting is not None
    red, blue = {"size": 1, "colour": "red"}, {"size": 1, "colour": "blue"}
    assert fitting({"one": red, "two": red})
    assert not fitting({"one": red, "two": blue})


def test_a_new_symbol_and_a_new_branch_do_not_fit() -> None:
    def enum(*symbols: str) -> dict[str, Any]:
        return {"type": "enum", "name": "Colour", "symbols": list(symbols)}

    assert fits(enum("red", "blue"), enum("red"), "red")
    assert not fits(enum("red", "blue"), enum("red"), "blue")
    new, old = [part(), part(name="Other"), part(name="Third")], [part(), part(name="Other")]
    assert fits(new, old, ("rollog.Other", {"size": 1}))
    assert not fits(new, old, ("rollog.Third", {"size": 1}))


def test_the_default_of_new_bytes_is_read_as_bytes() -> None:
    data = {"name": "data", "type": {"type": "bytes", "array": "int32"}, "default": ""}
    assert fits(part(data), part(), {"size": 1, "data": b""})
    assert not fits(part(data), part(), {"size": 1, "data": b"1234"})
