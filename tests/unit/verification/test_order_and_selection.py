"""Which samples are taken, and in which order their versions are loaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.verified_pieces import a_piece

from consumers.ledger import LedgerEntry
from consumers.verification.order import Part, turns_by_version
from consumers.verification.selection import Selection, chosen_records
from rollog.kernel.errors import ConfigError
from schemas import Disposition, LedgerKind, LedgerRecord, Verdict


def parts_of(*labels: list[int]) -> list[Part]:
    """One part per list, with the hints that the ledger gives."""
    later = [
        min((label for after in labels[at + 1 :] for label in after), default=None)
        for at in range(len(labels))
    ]
    return [
        Part(
            pieces=[a_piece(100 * at + n, label=label, num_tokens=1) for n, label in enumerate(each)],
            complete_below=hint,
        )
        for at, (each, hint) in enumerate(zip(labels, later, strict=True))
    ]


def turned(parts: list[Part]) -> list[tuple[int, list[int], list[int]]]:
    return [
        (turn.version, [piece.offset for piece in turn.pieces], [piece.offset for piece in turn.ahead])
        for turn in turns_by_version(parts)
    ]


def test_every_version_has_one_turn_with_the_pieces_ahead_of_it_and_its_neighbours_have_theirs() -> None:
    assert turned(parts_of([2, 2], [3, 2], [4, 3])) == [
        (1, [], [0, 1, 101]),
        (2, [0, 1, 101], [100, 201]),
        (3, [100, 201], [200]),
        (4, [200], []),
        (5, [], []),
    ]


def test_versions_far_from_each_other_are_not_walked_between() -> None:
    assert [version for version, _, _ in turned(parts_of([0], [7]))] == [0, 1, 6, 7, 8]


def test_little_is_held_at_a_time() -> None:
    read = 0

    def parts() -> list[Part]:
        return parts_of(*([label, label] for label in range(20)))

    def counted() -> object:
        nonlocal read
        for part in parts():
            read += 1
            yield part

    for turn in turns_by_version(counted()):  # type: ignore[arg-type]
        assert read <= turn.version + 3


@given(st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=6), st.booleans())
def test_every_piece_has_its_turn_once_whatever_the_hints_say(labels: list[list[int]], lies: bool) -> None:
    parts = parts_of(*labels)
    if lies:
        parts = [Part(pieces=part.pieces, complete_below=99) for part in parts]
    turns = list(turns_by_version(parts))
    taken = [(turn.version, piece.offset) for turn in turns for piece in turn.pieces]
    expected = [(piece.version, piece.offset) for part in parts for piece in part.pieces]
    assert sorted(taken) == sorted(expected)
    assert all(piece.version == turn.version for turn in turns for piece in turn.pieces)


def a_verdict(offset: int, *, lag: int | None = 0, disposition: Disposition = Disposition.TRAINED) -> Verdict:
    return Verdict(
        partition=0,
        offset=offset,
        sample_id=f"g{offset}.r0.a0",
        digest=b"",
        group_id=offset,
        replica=0,
        disposition=disposition,
        lag=lag,
    )


def a_ledger(*verdicts: list[Verdict]) -> list[LedgerEntry]:
    return [
        LedgerEntry(
            record=LedgerRecord(
                kind=LedgerKind.STEP,
                sequence=number,
                version=number,
                alpha=1.0,
                previous_hash=b"",
                low_water_marks=(0,),
                verdicts=tuple(each),
            ),
            offset=number,
            digest=b"",
        )
        for number, each in enumerate(verdicts, 1)
    ]


def offsets(entries: list[LedgerEntry], selection: Selection) -> list[int]:
    return [verdict.offset for records in chosen_records(entries, selection) for verdict in records.verdicts]


def test_trained_samples_are_taken_and_others_when_asked_for() -> None:
    entries = a_ledger([a_verdict(0), a_verdict(1, disposition=Disposition.FILTERED)], [a_verdict(2)])
    assert offsets(entries, Selection()) == [0, 2]
    assert offsets(entries, Selection(with_untrained=True)) == [0, 1, 2]
    assert offsets(entries, Selection(step=2)) == [2]
    with pytest.raises(ConfigError, match="--step 3: no step of the run made that version"):
        offsets(entries, Selection(step=3))


def test_a_share_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    entries = a_ledger([a_verdict(offset) for offset in range(2000)])
    first = offsets(entries, Selection(share=0.25, seed=1))
    assert first == offsets(entries, Selection(share=0.25, seed=1))
    assert 400 < len(first) < 600
    assert first != offsets(entries, Selection(share=0.25, seed=2))
    assert set(first) < set(offsets(entries, Selection(share=0.5, seed=1)))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ConfigError, match="--share"):
        Selection(share=share)


def test_the_hints_follow_from_the_lags_of_what_is_still_to_come() -> None:
    entries = a_ledger([a_verdict(0)], [a_verdict(1, lag=1)], [a_verdict(2, lag=1)], [a_verdict(3)])
    hints = [records.complete_below for records in chosen_records(entries, Selection())]
    assert hints == [0, 1, 3, None]
