"""Sessions of an agent through the whole loop: real broker, transformers, DeepSpeed, agents in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.chat_models import saved_chat_model
from support.threaded_run import check_logprobs_of_first_step, small_settings, verdict_counts, whole_run

from schemas import Disposition

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine]


# The default mode; the others, which single-role tests show too, are for the slow ones.
@pytest.mark.parametrize(
    "mode", ["keep", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("drain", "abort"))]
)
def test_sessions_are_recorded_trained_and_audited_whatever_a_reload_does(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path, mode: str
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 3},
        model={
            "path": str(
                saved_chat_model(tmp_path / "chat", hidden_size=32, num_heads=4, max_position_embeddings=512)
            ),
            "max_context_tokens": 400,
        },
        freshness={"alpha": 2.0},
        agent={"function": "support.agents_for_tests:two_calls", "max_turns": 4, "max_tokens": 64},
        groups={"groups_per_batch": 2, "group_size": 4, "filter_zero_signal": False},
        rollout={"engine": "transformers", "capacity": 8, "reload": mode},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
        finished = run.finished_samples()
    run.audited()
    assert verdict_counts(ledger)[Disposition.TRAINED] == 3 * 2 * 4
    for sample in finished:
        assert (len(sample.turns), sample.forks, sample.wasted_tokens) == (2, (), 0)
        assert not sample.behaviour_logprobs[sample.loss_mask == 0].any()
        assert np.flatnonzero(sample.loss_mask).tolist() == [
            at for turn in sample.turns for at in range(turn.start, turn.end)
        ]
    check_logprobs_of_first_step(ledger)
