"""What the experiment on reloads makes of a run's records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import LedgerBuilder, a_sample

from benchmarks.harness.variant import Job
from benchmarks.harness.workload import tokens_per_second
from benchmarks.reloads.measure import ReloadResult, figures_of, result_of
from benchmarks.reloads.variants import Case, cases, fetches, least_busy, step_seconds
from rollog.kernel.broker.ports import Record
from schemas.codec import encode

case = Case(alpha=3.0, fetch=0.5)


def a_result(*, busy: float, seconds: float = 20.0, num_stale: int = 0) -> ReloadResult:
    return ReloadResult(seconds=seconds, busy_share=busy, num_stale=num_stale, num_trained=100)


def a_sample_record(*, ended: float, num_tokens: int) -> Record:
    sample = a_sample(wasted_tokens=num_tokens - 3)
    return Record(
        topic="samples", partition=0, offset=0, value=encode(sample), timestamp_ms=round(ended * 1000)
    )


def test_a_fetch_takes_its_share_of_a_step_and_whoever_stands_still_takes_it_in_the_swap() -> None:
    shadow = case.variant()
    still = Case(alpha=3.0, fetch=0.5, stands_still=True).variant()
    assert shadow.fetch_seconds == 0.5 * step_seconds
    assert still.fetch_seconds == 0.0
    assert still.swap_seconds == pytest.approx(shadow.fetch_seconds + shadow.swap_seconds)
    assert case.baseline.variant().swap_seconds == 0.0
    assert len({each.name for each in cases}) == len(cases) == 2 * (1 + 2 * len(fetches))


def test_slots_are_busy_as_long_as_tokens_take_that_were_made_between_the_measured_steps() -> None:
    builder = LedgerBuilder()
    for _ in range(10):
        builder.step()
    ledger = [(1000 * number, record) for number, record in enumerate(builder.records)]
    job = Job(variant=case.variant(), seed=0, number=0, speed=2.0)
    # Of the steps at 1, 2 ... 10 s those from 4 to 6 s are measured. The tokens take 4 s, 1 s of them before 4 s.
    num_tokens = round(4 * 2.0 * tokens_per_second)
    result = result_of(ledger, [a_sample_record(ended=7.0, num_tokens=num_tokens)], job)
    assert result.seconds == 2.0
    assert result.busy_share == pytest.approx(2.0 / (16 * 2.0))


def test_slots_kept_busy_are_against_the_same_workload_with_reloads_that_take_no_time() -> None:
    found = {
        case.name: {0: a_result(busy=0.9, num_stale=4), 1: a_result(busy=0.8)},
        case.baseline.name: {0: a_result(busy=1.0, seconds=10.0), 2: a_result(busy=0.1)},
    }
    figures = {figure.name: figure for figure in figures_of(found)}
    kept = figures[f"{case.name}.busy_slots_kept"]
    assert (kept.value, kept.target, kept.num_draws) == (0.9, least_busy, 1)
    assert figures[f"{case.name}.step_time"].value == 2.0
    assert figures[f"{case.name}.stale"].value == 0.02
    assert f"{case.baseline.name}.step_time" not in figures


def test_only_what_leaves_work_to_do_in_a_fetch_has_a_target() -> None:
    found = {each.name: {0: a_result(busy=0.9)} for each in cases}
    named = {figure.name for figure in figures_of(found) if figure.target is not None}
    assert named == {f"reloads.alpha_3.fetch_{fetch:g}_steps.busy_slots_kept" for fetch in fetches}


def test_the_table_of_the_docs_holds_the_measured_figures() -> None:
    root = Path(__file__).parents[3]
    measured = json.loads((root / "benchmarks/reloads/results/reloads.json").read_text(encoding="utf-8"))
    values = {figure["name"]: figure["value"] for figure in measured["figures"]}
    page = (root / "docs/benchmarks.md").read_text(encoding="utf-8")
    for shadow in [each for each in cases if not each.stands_still and each.fetch]:
        still = Case(alpha=shadow.alpha, fetch=shadow.fetch, stands_still=True)
        cells = [
            f"{shadow.alpha:g}",
            f"{shadow.fetch:g}",
            f"{values[f'{shadow.name}.busy_slots_kept']:.3f}",
            f"{values[f'{shadow.name}.step_time']:.2f}",
            f"{values[f'{shadow.name}.stale']:.3f}",
            f"{values[f'{still.name}.busy_slots_kept']:.3f}",
            f"{values[f'{still.name}.step_time']:.2f}",
        ]
        assert f"| {' | '.join(cells)} |" in page
