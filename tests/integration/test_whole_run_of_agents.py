"""Sessions of an agent through the whole loop: real broker, transformers, DeepSpeed, agents in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.chat_models import saved_chat_model
from support.threaded_run import small_settings, whole_run

from consumers.audit.auditor import audit_run
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, Status, Step

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine]


@pytest.mark.parametrize("mode", ["keep", "drain", "abort"])
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
        run.dispatcher()
        run.trainer()
        run.worker()
        ledger = run.wait_until_closed()
        finished = [sample for sample in run.read_samples() if sample.status is Status.FINISHED]
    report = audit_run(run.broker, run.topics, WeightsStore(run.manifest.weights_uri))
    assert report.is_clean, "\n".join(report.lines())
    verdicts = [verdict.disposition for record in ledger for verdict in record.verdicts]
    assert verdicts.count(Disposition.TRAINED) == 3 * 2 * 4
    for sample in finished:
        assert (len(sample.turns), sample.forks, sample.wasted_tokens) == (2, (), 0)
        assert not sample.behaviour_logprobs[sample.loss_mask == 0].any()
        assert np.flatnonzero(sample.loss_mask).tolist() == [
            at for turn in sample.turns for at in range(turn.start, turn.end)
        ]
    steps = [record.body for record in ledger if isinstance(record.body, Step)]
    # What the trainer computes for the sampled tokens is what the engine said, turn by turn.
    assert all(0.99 < step.statistics["first_effective_sample_size"] <= 1 + 1e-6 for step in steps[:1])
