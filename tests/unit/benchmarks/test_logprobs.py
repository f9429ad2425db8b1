"""The benchmark of log-probabilities in chunks: both ways train on the same batches, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.small_training import make_model, vocabulary

from benchmarks.logprobs.measure import figures_of, measure_chunks
from benchmarks.training.workloads import Workload

if TYPE_CHECKING:
    from pathlib import Path


def test_the_cost_is_the_ratio_of_both_sides() -> None:
    figures = {figure.name: figure for figure in figures_of("demo", [(3.0, 2.0), (6.0, 4.0)])}
    assert figures["logprobs.demo.cost"].value == pytest.approx(1.5)
    assert figures["logprobs.demo.chunks"].value == 4.5
    assert figures["logprobs.demo.at_once"].value == 3.0


def test_every_pair_but_the_first_is_measured(tmp_path: Path) -> None:
    workload = Workload(
        name="small",
        model_path=make_model(tmp_path),
        vocabulary=vocabulary,
        num_groups=2,
        group_size=2,
        num_minibatches=1,
        micro_batch_tokens=100,
        prompt_tokens=(2, 3),
        response_tokens=(4, 5),
    )
    lines: list[str] = []
    figures = measure_chunks(workload, chunk_tokens=3, num_pairs=4, seed=0, on_progress=lines.append)
    assert len(lines) == 5
    assert lines[0].index("at_once") < lines[0].index("chunks")
    assert lines[1].index("chunks") < lines[1].index("at_once")
    assert [figure.num_draws for figure in figures if figure.name.endswith("cost")] == [4]
