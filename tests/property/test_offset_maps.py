"""A mirror laid beside its original: offsets found again whatever gaps there were, and every change named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from rollog.kernel.broker.offset_map import Alignment, Fault, FaultKind, Originals, align, whole_digest
from rollog.kernel.broker.ports import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

transactions = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=12)
"""Records of each batch, whether it was a transaction, and if so whether that was committed."""
edits = st.lists(st.sampled_from(["keep", "lose", "double", "alter", "add"]), max_size=12)


@dataclass(frozen=True)
class Original:
    """A partition as its broker has it: offsets of what readers see, and the end behind the last marker."""

    offsets: list[int]
    end: int

    @property
    def digests(self) -> list[bytes]:
        return [b"record %d" % offset for offset in self.offsets]

    def known(self) -> Originals:
        return Originals(offsets=self.offsets, digests=self.digests, digest=whole_digest, end=self.end)

    def named(self, chosen: Sequence[int]) -> Originals:
        """Only some of the records, as a ledger names those that it has judged."""
        return Originals(
            offsets=[self.offsets[index] for index in chosen],
            digests=[self.digests[index] for index in chosen],
            digest=whole_digest,
            is_complete=False,
        )


def written(batches: Sequence[tuple[int, bool, bool]]) -> Original:
    offsets: list[int] = []
    end = 0
    for length, is_transaction, is_committed in batches:
        if not is_transaction or is_committed:
            offsets += range(end, end + length)
        end += length + (is_transaction and length > 0)
    return Original(offsets, end)


def numbered(digests: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return list(enumerate(digests))


def laid_beside(known: Originals, digests: Sequence[bytes]) -> Alignment:
    return align(known, numbered(digests), mirrored_end=len(digests))


@given(transactions)
def test_a_faithful_mirror_has_every_offset_again(batches: list[tuple[int, bool, bool]]) -> None:
    original = written(batches)
    found = laid_beside(original.known(), original.digests)
    assert not found.faults
    assert (found.originals, found.end) == (original.offsets, original.end)
    for index, offset in enumerate(original.offsets):
        assert found.original_of(index) == offset
        assert found.to_mirrored(offset) == index
        assert found.to_original(index) == offset
    assert found.to_original(len(original.offsets)) == original.end


@given(transactions, st.data())
def test_a_reader_that_begins_anywhere_misses_nothing_behind_that(
    batches: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    original = written(batches)
    found = laid_beside(original.known(), original.digests)
    begin = data.draw(st.integers(0, original.end))
    rest = [found.original_of(index) for index in range(found.to_mirrored(begin), len(original.offsets))]
    assert rest == [offset for offset in original.offsets if offset >= begin]


@given(transactions, edits)
def test_every_change_is_named_at_its_offset(
    batches: list[tuple[int, bool, bool]], wanted: list[str]
) -> None:
    original = written(batches)
    digests, expected = mutated(original, wanted)
    found = laid_beside(original.known(), digests)
    assert sorted(named(found.faults, digests)) == sorted(expected)
    seen = {
        offset: digests[index]
        for index in range(len(digests))
        if (offset := found.original_of(index)) is not None
    }
    lost = {offset for kind, offset in expected if kind == FaultKind.LOST}
    altered = {offset: b"altered" for kind, offset in expected if kind == FaultKind.ALTERED}
    whole = dict(zip(original.offsets, original.digests, strict=True)) | altered
    assert seen == {offset: digest for offset, digest in whole.items() if offset not in lost}


def named(faults: Sequence[Fault], digests: Sequence[bytes]) -> list[tuple[str, int]]:
    """Each by its original offset; which of two equal records is the second cannot be told."""
    return [
        (
            fault.kind,
            original_offset(digests[fault.mirrored or 0]) if fault.original is None else fault.original,
        )
        for fault in faults
    ]


def original_offset(digest: bytes) -> int:
    return int(digest.rsplit(maxsplit=1)[-1]) if digest.startswith(b"record") else -1


def mutated(original: Original, wanted: Sequence[str]) -> tuple[list[bytes], list[tuple[str, int]]]:
    """Every second record may be changed, so that what was changed cannot be told in two ways; the last stays."""
    digests: list[bytes] = []
    expected = []
    for index, (offset, digest) in enumerate(zip(original.offsets, original.digests, strict=True)):
        is_kept = index % 2 == 0 or index // 2 >= len(wanted) or index == len(original.offsets) - 1
        edit = "keep" if is_kept else wanted[index // 2]
        digests += {
            "keep": [digest],
            "lose": [],
            "double": [digest, digest],
            "alter": [b"altered"],
            "add": [digest, b"added"],
        }[edit]
        kinds = {"lose": FaultKind.LOST, "double": FaultKind.DOUBLED, "alter": FaultKind.ALTERED}
        if edit == "add":
            expected.append((str(FaultKind.ADDED), -1))
        elif edit != "keep":
            expected.append((str(kinds[edit]), offset))
    return digests, expected


@given(transactions, st.data())
def test_a_block_that_came_twice_is_read_once(
    batches: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    original = written(batches)
    begin = data.draw(st.integers(0, len(original.offsets)))
    digests = [*original.digests, *original.digests[begin:]]
    found = laid_beside(original.known(), digests)
    assert {fault.kind for fault in found.faults} <= {FaultKind.DOUBLED}
    assert len(found.faults) == len(original.offsets) - begin
    assert found.originals == original.offsets


@given(transactions, st.data())
def test_what_the_mirror_does_not_have_yet_is_told_from_what_it_lost(
    batches: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    original = written(batches)
    length = data.draw(st.integers(0, len(original.offsets)))
    found = laid_beside(original.known(), original.digests[:length])
    assert [fault.original for fault in found.faults] == original.offsets[length:]
    assert {fault.kind for fault in found.faults} <= {FaultKind.NOT_YET}
    assert found.end <= original.end


@given(transactions, st.data())
def test_retention_in_the_mirror_is_no_loss(
    batches: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    original = written(batches)
    cut = data.draw(st.integers(0, len(original.offsets)))
    stored = numbered(original.digests)[cut:]
    found = align(original.known(), stored, mirrored_end=len(original.digests), is_cut=cut > 0)
    if stored:
        assert not found.faults
        assert found.originals == original.offsets[cut:]
        assert found.begin <= original.offsets[cut]


@given(st.integers(1, 20), st.data())
def test_records_that_nobody_has_named_are_put_into_the_gaps(num_records: int, data: st.DataObject) -> None:
    """As of a live run: some records are judged, those between have their offsets because none is missing."""
    original = Original(list(range(num_records)), num_records)
    chosen = sorted(data.draw(st.sets(st.integers(0, num_records - 1))))
    found = laid_beside(original.named(chosen), original.digests)
    assert not found.faults
    assert found.originals == original.offsets


def test_digests_cover_key_headers_and_value() -> None:
    def digest(
        value: bytes | None, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> bytes:
        return whole_digest(Record(topic="t", partition=0, offset=0, value=value, key=key, headers=headers))

    different = [
        digest(b"ab"),
        digest(b"b", b"a"),
        digest(None, b"ab"),
        digest(b"", b"ab"),
        digest(b"ab", None, [("h", b"")]),
        digest(b"ab", None, [("", b"h")]),
    ]
    assert len(set(different)) == len(different)
    record = Record(topic="t", partition=0, offset=0, value=b"ab")
    moved = Record(topic="u", partition=3, offset=9, value=b"ab", timestamp_ms=5)
    assert whole_digest(record) == whole_digest(moved)
