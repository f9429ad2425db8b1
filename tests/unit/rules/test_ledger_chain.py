"""Which records of `steps` belong to the ledger, and which are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import LedgerBuilder

from rollog.kernel.broker.ports import Record
from rollog.kernel.errors import LedgerError
from rollog.rules.ledger_chain import LedgerChain, chain_within
from schemas import LedgerRecord
from schemas.codec import encode


def ledger_of(num_steps: int) -> list[LedgerRecord]:
    builder = LedgerBuilder()
    for _ in range(num_steps):
        builder.step()
    return builder.records


def stored(value: bytes | None, offset: int = 0) -> Record:
    return Record(topic="rollog.run.steps", partition=0, offset=offset, value=value)


def taken(chain: LedgerChain, *records: LedgerRecord | bytes | None) -> list[int]:
    """Sequences of those that are the ledger's."""
    values = [encode(record) if isinstance(record, LedgerRecord) else record for record in records]
    found = [chain.take(stored(value, offset)) for offset, value in enumerate(values)]
    return [entry[0].sequence for entry in found if entry is not None]


def test_what_follows_is_taken_and_what_cannot_is_left_out() -> None:
    records = ledger_of(3)
    chain = LedgerChain()
    strangers = [b"garbage", None, records[0], replace(records[1], sequence=77)]
    assert taken(chain, records[0], *strangers, *records[1:]) == [0, 1, 2, 3]
    assert chain.num_strangers == len(strangers)


def test_a_copy_of_the_whole_ledger_is_left_out() -> None:
    records = ledger_of(3)
    assert taken(LedgerChain(), *records, *records) == [0, 1, 2, 3]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_record_that_is_missing_ends_the_reading(missing: int) -> None:
    records = ledger_of(4)
    with pytest.raises(LedgerError, match=r"rollog\.run\.steps, offset \d: .*missing or was altered"):
        taken(LedgerChain(), *records[:missing], *records[missing + 1 :])


def test_an_altered_record_ends_the_reading_with_the_second_one_behind_it() -> None:
    records = ledger_of(4)
    altered = replace(records[1], alpha=3.0)
    with pytest.raises(LedgerError, match="missing or was altered"):
        taken(LedgerChain(), records[0], altered, *records[2:])


def test_a_flood_of_strangers_is_not_kept() -> None:
    records = ledger_of(1)
    chain = LedgerChain()
    for number in range(3000):
        chain.take(stored(encode(replace(records[1], sequence=10_000_000 + 2 * number))))
    assert len(chain._beyond) == 1000


def test_the_end_of_a_ledger_is_known_by_the_longest_chain() -> None:
    records = ledger_of(8)
    forged = [replace(records[0], version=3), replace(records[4], sequence=99), records[1]]
    end = [stored(encode(record)) for record in (forged[0], records[3], *forged[1:], *records[4:])]
    chain = chain_within([stored(b"garbage"), *end])
    assert chain is not None
    assert [found[0].sequence for record in end if (found := chain.take(record))] == [3, 4, 5, 6, 7, 8]


def test_among_many_strangers_no_chain_is_believed() -> None:
    records = ledger_of(3)
    forged = [stored(encode(replace(records[0], sequence=number))) for number in range(9)]
    assert chain_within([*forged, stored(encode(records[3]))]) is None
