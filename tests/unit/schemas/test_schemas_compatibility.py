"""Breaking a released schema is named; growing one is allowed and old records stay readable."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from schemas import Sample, Stop, WorkerState, WorkerStatus
from schemas.catalogue import Catalogue, load_catalogue, schema_from
from schemas.codec import Codec, SchemaError, decode, encode
from schemas.compatibility import breaks, definition_breaks, main
from schemas.frames import SingleObjectFrame


def released(name: str) -> dict[str, Any]:
    return copy.deepcopy(load_catalogue().releases[1][name].definition)


def field_of(definition: dict[str, Any], name: str) -> dict[str, Any]:
    field: dict[str, Any] = next(field for field in definition["fields"] if field["name"] == name)
    return field


def without(definition: dict[str, Any], name: str) -> dict[str, Any]:
    definition["fields"] = [field for field in definition["fields"] if field["name"] != name]
    return definition


def test_the_schemas_in_force_fit_every_release() -> None:
    assert breaks(load_catalogue()) == []


def test_the_check_runs_as_a_program_and_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schemas.compatibility"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_record_that_is_gone_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue = load_catalogue()
    current = {name: schema for name, schema in catalogue.current.items() if name != "Fence"}
    assert main(Catalogue(current, catalogue.releases)) == 1
    assert capsys.readouterr().err == (
        "release 1: Fence: the record is gone, but logs hold it; restore its schema\n"
        "release 2: Fence: the record is gone, but logs hold it; restore its schema\n"
        "release 3: Fence: the record is gone, but logs hold it; restore its schema\n"
        "release 4: Fence: the record is gone, but logs hold it; restore its schema\n"
    )


def test_records_of_a_class_that_is_gone_are_refused_by_name() -> None:
    catalogue = load_catalogue()
    gone = schema_from({"type": "record", "name": "Pause", "namespace": "rollog", "fields": []})
    with_gone = replace(catalogue, releases={1: {"Pause": gone}})
    codec = Codec(with_gone, SingleObjectFrame(with_gone))
    with pytest.raises(SchemaError, match="records of type Pause are no longer read"):
        codec.decode(b"\xc3\x01" + gone.fingerprint)


def test_a_field_that_is_gone_is_named() -> None:
    (message,) = definition_breaks(released("Sample"), without(released("Sample"), "reward"))
    assert message.startswith("Sample.reward: the field is gone")


def test_a_new_field_without_a_default_is_named_and_one_with_a_default_is_allowed() -> None:
    grown = released("Stop")
    grown["fields"].append({"name": "urgency", "type": "long", "doc": "How soon."})
    (message,) = definition_breaks(released("Stop"), grown)
    assert message.startswith("Stop.urgency: the new field has no default")
    grown["fields"][-1]["default"] = 0
    assert definition_breaks(released("Stop"), grown) == []


@pytest.mark.parametrize(
    ("name", "retyped", "words"),
    [
        ("group_id", "string", "from long to string"),
        ("group_id", ["null", "long"], "from long to a union"),
        ("token_ids", {"type": "bytes", "array": "float32"}, "from bytes of int32 to bytes of float32"),
        ("metadata", {"type": "map", "values": "long"}, r"Sample.metadata\[\]: .* from string to long"),
        ("reward", ["null", "double", "string"], "gained the branch string"),
        ("reward", ["double"], "the branch null is gone"),
        ("timings", {"type": "record", "name": "Spans", "fields": []}, "from record Timings to record Spans"),
    ],
)
def test_a_retyped_field_is_named(name: str, retyped: Any, words: str) -> None:
    current = released("Sample")
    field_of(current, name)["type"] = retyped
    (message,) = definition_breaks(released("Sample"), current)
    assert re.search(words, message)


def test_an_enum_may_gain_a_symbol_but_not_lose_one() -> None:
    current = released("Cancel")
    symbols = field_of(current, "reason")["type"]["symbols"]
    symbols.append("superseded")
    assert definition_breaks(released("Cancel"), current) == []
    symbols.remove("stale")
    (message,) = definition_breaks(released("Cancel"), current)
    assert message.startswith("Cancel.reason: the symbol stale is gone")


def test_a_union_of_records_may_gain_a_record_and_nested_breaks_are_found_in_it() -> None:
    current = released("LedgerRecord")
    union = field_of(current, "body")["type"]
    union.append({"type": "record", "name": "Pause", "fields": []})
    assert definition_breaks(released("LedgerRecord"), current) == []
    without(union[2], "seed")
    (message,) = definition_breaks(released("LedgerRecord"), current)
    assert message.startswith("LedgerRecord.body.seed: the field is gone")


def test_a_record_of_an_older_schema_gets_the_defaults_of_the_fields_it_lacks() -> None:
    catalogue = load_catalogue()
    older = schema_from(without(released("Stop"), "reason"))
    with_older = replace(catalogue, releases={0: {"Stop": older}, **catalogue.releases})
    codec = Codec(with_older, SingleObjectFrame(with_older))
    bytes_of_older = b"\xc3\x01" + older.fingerprint + b"\x02" + b"\x02g"
    assert codec.decode(bytes_of_older) == Stop(epoch=1, grant_id="g")
    with pytest.raises(SchemaError, match="newer or a foreign program"):
        decode(bytes_of_older)


def test_arrays_maps_and_nested_records_that_an_older_schema_lacks_are_empty_and_not_shared() -> None:
    catalogue = load_catalogue()
    definition = released("Sample")
    definition["fields"] = [field for field in definition["fields"] if "default" not in field]
    older = schema_from(definition)
    with_older = replace(catalogue, releases={0: {"Sample": older}})
    codec = Codec(with_older, SingleObjectFrame(with_older))
    body = b"\x00" * 11  # empty strings, zeros, first symbols
    first, second = (codec.decode_as(Sample, b"\xc3\x01" + older.fingerprint + body) for _ in range(2))
    assert first == second
    assert first.token_ids.dtype == "int32"
    assert first.metadata is not second.metadata


def test_a_heartbeat_of_an_older_release_tells_of_no_rollout_that_is_scored() -> None:
    older = load_catalogue().releases[1]["WorkerStatus"]
    assert not any(field["name"] == "num_scoring" for field in older.definition["fields"])
    status = WorkerStatus(worker_id="w", state=WorkerState.SERVING, capacity=4)
    bytes_of_older = encode(status)
    assert bytes_of_older[2:10] == older.fingerprint
    assert decode(bytes_of_older) == status
    assert status.num_scoring == 0
