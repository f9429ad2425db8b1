"""Ten thousand rewards out of order, doubled, missing, some before their samples, under a trainer that is killed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.late_scorer import first_valid, rewards_named, rewards_that_may_count
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, Sample, Status
from schemas.codec import decode_as

num_rewards = 10_000
num_steps = 115
plan = Plan(
    late_rewards=True,
    reward_deadline_seconds=1.0,
    alpha=4.0,
    groups_per_batch=16,
    group_size=4,
    num_steps=num_steps,
    patience_seconds=1.0,
    num_prompts=400,
    num_slots=80,
    checkpoint_every_steps=5,
    filters={"filter_zero_signal": False},
    snapshot_every_seconds=2.0,
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_ten_thousand_late_rewards_each_trained_sample_has_the_first_valid_one() -> None:
    draw = random.Random(7)
    num_kills = 0
    with SimulatedRun(plan) as run:
        assert run.scorer is not None
        run.scorer.mistakes["missing"] = 0.01
        while not (run.trainer is not None and run.trainer.ledger.is_closed):
            if run.trainer is None:
                run.start_trainer()
            run.producers_round()
            if draw.random() < 0.1:
                run.broker.cut = draw.choice(["before", "after"])
            run.turn_trainer()
            if run.trainer is None or draw.random() < 0.02:
                num_kills += 1
                run.kill_trainer()
        assert num_kills > 20
        assert run.scorer.num_written["records"] >= num_rewards
        report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
        assert report.is_clean, "\n".join(report.lines())
        i17 = next(check for check in report.checks if check.name == "I17")
        ledger = [entry.record for entry in read_ledger(run.broker, run.topics)]
        stored = rewards_that_may_count(run.scorer.records(), ledger, run.plan)
        named = rewards_named(ledger)
        verdicts = [verdict for record in ledger for verdict in record.verdicts]
        counts = Counter(verdict.disposition for verdict in verdicts)
        assert counts[Disposition.TRAINED] == num_steps * 16 * 4
        assert counts[Disposition.UNREWARDED] > 0
        with run.broker.consumer(client_id="test") as consumer:
            samples = {
                (record.partition, record.offset): decode_as(Sample, record.value or b"")
                for record in read_to_end(consumer, run.topics.samples, 0, 1)
            }
        judged = [samples[(verdict.partition, verdict.offset)] for verdict in verdicts]
        assert i17.num_checked == sum(sample.status is Status.FINISHED for sample in judged)
        for verdict, sample in zip(verdicts, judged, strict=True):
            if verdict.disposition is Disposition.TRAINED:
                assert named[verdict.sample_id] == first_valid(stored[verdict.sample_id], sample)
