"""A verification over a model that is a table: what is found, and at which version and worker."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.verified_pieces import TableScorer, TableWeights, a_piece, one_part

from consumers.verification.order import Part
from consumers.verification.rule import Tolerances
from consumers.verification.verifier import Verifier
from schemas import float32_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumers.verification.pieces import Piece
    from consumers.verification.report import VerificationReport
    from schemas import Float32Array

newest = 9
workers = ("worker-a", "worker-b")
fixed = Tolerances.fixed(1e-3)


def verified(
    pieces: Sequence[Piece],
    *,
    weights: TableWeights | None = None,
    tolerances: Tolerances = fixed,
    scorer: TableScorer | None = None,
) -> VerificationReport:
    verifier = Verifier(scorer or TableScorer(), weights or TableWeights(newest), lambda *_: tolerances)
    return verifier.run(one_part(pieces))


def a_run(
    changed: Callable[[int, str, int], dict[str, float]] = lambda *_: {},
    noise: Callable[[int], Float32Array] | None = None,
    per_group: int = 10,
) -> list[Piece]:
    """Versions 0 to 7, two workers, ten samples of each; `changed` gives arguments by version, worker, number."""
    pieces: list[Piece] = []
    for version in range(8):
        for worker in workers:
            for number in range(per_group):
                name = len(pieces)
                changes = changed(version, worker, number)
                pieces.append(a_piece(name, label=version, worker=worker, noise=noise, **changes))  # type: ignore[arg-type]
    return pieces


def bfloat16_noise(seed: int) -> Callable[[int], Float32Array]:
    draw = np.random.default_rng(seed)

    def noise(num_tokens: int) -> Float32Array:
        return float32_array(0.006 * draw.standard_t(3, num_tokens) * (draw.random(num_tokens) < 0.5))

    return noise


def named(report: VerificationReport) -> list[tuple[int, str, dict[int, int]]]:
    return [(found.version, found.worker_id, dict(found.fits)) for found in report.findings]


@pytest.mark.parametrize("seed", range(10))
def test_clean_runs_give_no_alarm(seed: int) -> None:
    report = verified(a_run(noise=bfloat16_noise(seed), per_group=30), tolerances=Tolerances.of_noise(0.007))
    assert report.is_clean, list(report.lines())
    exact = verified(a_run())
    assert exact.is_clean
    assert [group.num_beyond for group in exact.groups] == [0] * 16
    assert all(group.is_told_apart(fixed) for group in exact.groups)


def test_a_worker_that_skips_a_reload_is_named_with_the_version_it_went_on_with() -> None:
    report = verified(
        a_run(lambda version, worker, _: {"made_by": 3} if (version, worker) == (4, "worker-b") else {})
    )
    assert named(report) == [(4, "worker-b", {3: 10})]
    assert not report.is_clean


def test_a_worker_that_is_stuck_is_named_at_each_version_and_what_it_has_is_tried_first() -> None:
    scorer = TableScorer()
    stuck = a_run(lambda version, worker, _: {"made_by": 1} if version > 1 and worker == "worker-a" else {})
    report = verified(stuck, scorer=scorer)
    assert named(report) == [(version, "worker-a", {1: 10}) for version in range(2, 8)]
    searched = scorer.loads[newest:]
    assert searched.count(1) == 6
    assert len(searched) == 6


def test_labels_that_are_swapped_are_both_named() -> None:
    swapped = {4: 5, 5: 4}
    report = verified(a_run(lambda version, *_: {"made_by": swapped.get(version, version)}))
    assert named(report) == [
        (4, "worker-a", {5: 10}),
        (4, "worker-b", {5: 10}),
        (5, "worker-a", {4: 10}),
        (5, "worker-b", {4: 10}),
    ]


@pytest.mark.parametrize("by", [-0.01, 0.01])
def test_log_probabilities_altered_in_one_sample_are_named_as_explained_by_nothing(by: float) -> None:
    report = verified(
        a_run(lambda *place: {"altered": by} if place == (6, "worker-a", 3) else {}),
    )
    (finding,) = report.findings
    assert (finding.version, finding.worker_id, dict(finding.fits)) == (6, "worker-a", {})
    assert list(finding.samples) == ["g123.r0.a0"]
    assert "g123.r0.a0 (partition 1, offset 123" in str(finding)


def test_an_altered_sample_beside_a_skipped_reload_is_named_by_itself() -> None:
    def changed(version: int, worker: str, number: int) -> dict[str, float]:
        if (version, worker) != (4, "worker-b"):
            return {}
        return {"made_by": 3, "altered": 0.5 if number == 2 else 0.0}

    assert named(verified(a_run(changed))) == [(4, "worker-b", {3: 9}), (4, "worker-b", {})]


@pytest.mark.parametrize("seed", range(10))
def test_a_skipped_reload_shows_under_noise_of_bfloat16(seed: int) -> None:
    report = verified(
        a_run(
            lambda version, worker, _: {"made_by": 3} if (version, worker) == (4, "worker-b") else {},
            noise=bfloat16_noise(seed),
            per_group=60,
        ),
        tolerances=Tolerances.of_noise(0.007),
    )
    assert {(version, worker, *fits) for version, worker, fits in named(report)} == {(4, "worker-b", 3)}


def test_a_segment_of_weights_that_were_never_published_is_named_and_not_compared() -> None:
    pieces = a_run()
    pieces[0] = replace(pieces[0], weights_digest="f" * 16)
    pieces.append(a_piece(999, label=newest + 1))
    report = verified(pieces)
    assert report.foreign == {(0, "worker-a"): 1, (newest + 1, "worker-a"): 1}
    assert report.num_samples == len(pieces) - 2
    assert not report.is_clean


def test_a_version_whose_file_is_gone_counts_as_not_checked() -> None:
    report = verified(a_run(), weights=TableWeights(newest, missing=[2]))
    assert [(each.version, each.num_samples) for each in report.unchecked] == [(2, 20)]
    assert report.is_clean


def test_what_is_not_checked_in_two_rounds_adds_up() -> None:
    pieces = [a_piece(number, label=label) for number, label in enumerate([2, 2, 5, 2])]
    parts = [Part(pieces=pieces[:3], complete_below=5), Part(pieces=pieces[3:], complete_below=None)]
    verifier = Verifier(TableScorer(), TableWeights(newest, missing=[2]), lambda *_: fixed)
    report = verifier.run(parts)
    assert [(each.version, each.num_samples) for each in report.unchecked] == [(2, 3)]
    assert not report.is_complete
    assert list(report.lines())[-1] == "verify: nothing is off; not checked: 0 sample(s) and 3 segment(s)"


def test_nothing_to_compare_is_not_clean() -> None:
    report = verified([])
    assert not report.is_clean
    assert list(report.lines())[-1] == "verify: nothing could be compared"


def test_each_version_is_loaded_once_where_nothing_is_off() -> None:
    scorer = TableScorer()
    verified(a_run(), scorer=scorer)
    assert scorer.loads == list(range(9))


def test_tokens_that_the_policy_did_not_sample_are_not_compared() -> None:
    piece = a_piece(0, num_tokens=4)
    recorded = piece.recorded.copy()
    recorded[2] = np.nan
    is_compared = np.array([True, True, False, True])
    report = verified([replace(piece, recorded=float32_array(recorded), is_compared=is_compared)])
    assert [(group.num_tokens, group.num_beyond) for group in report.groups] == [(3, 0)]


def test_a_report_is_json_also_where_a_model_gives_no_numbers() -> None:
    piece = a_piece(0)
    recorded = piece.recorded.copy()
    recorded[0] = np.nan
    report = verified([replace(piece, recorded=recorded)])
    assert not report.is_clean
    told = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert told["groups"][0]["mean"] is None
    assert told["findings"][0]["samples"] == ["g0.r0.a0"]
