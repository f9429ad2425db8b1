"""The scorer in docs/rewards.md reads samples and writes rewards without anything of rollog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.builders import a_sample

from rollog.kernel.broker.topics import OptionalTopic, RunTopics, topic_specs
from rollog.settings.run import BrokerConfig
from schemas import Reward
from schemas.codec import decode, encode

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker

root = Path(__file__).parents[2]
page = (root / "docs" / "rewards.md").read_text(encoding="utf-8")
_, of_a_scorer = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
nothing_of_ours = """
import sys
assert not {"schemas", "rollog", "producers", "consumers", "trainer"} & set(sys.modules)
"""


@pytest.mark.broker
def test_each_sample_that_waits_is_scored(kafka_broker: KafkaBroker, run_topics: RunTopics) -> None:
    with kafka_broker.admin() as admin:
        admin.create_topics(topic_specs(run_topics, BrokerConfig(), [OptionalTopic.REWARDS]))
    samples = [
        a_sample(0, 0, reward=None, awaits_reward=True),
        a_sample(0, 1),
        a_sample(1, 0, reward=None, awaits_reward=True),
    ]
    with kafka_broker.producer(client_id="worker") as producer:
        for sample in samples:
            producer.send(run_topics.samples, sample.group_id, encode(sample))
        producer.flush(30)
    code = of_a_scorer.replace("rollog.first.samples", run_topics.samples)
    code = code.replace("rollog.first.rewards", run_topics.rewards)
    code = code.replace("localhost:9092", kafka_broker.address)
    command = [sys.executable, "-I", "-c", code + nothing_of_ours]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [decode(record.value or b"") for record in read_to_end(kafka_broker, run_topics.rewards, (0,))]
    assert sorted(
        (reward.sample_id, reward.reward, reward.scorer) for reward in found if isinstance(reward, Reward)
    ) == [("g0.r0.a0", 3.0, "length"), ("g1.r0.a0", 3.0, "length")]
