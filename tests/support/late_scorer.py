"""A program outside of a run that scores its samples: late, out of order, doubled, wrongly, and some never."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.rewards.late import LateRewards
from rollog.kernel.broker.ports import TopicPartition
from schemas import Reward, sample_id
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from producers.rollout.outcomes import Replica
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import LedgerRecord, Sample
    from support.simulated_plan import Plan

_usual_mistakes = {"missing": 0.04, "misfit": 0.08, "doubled": 0.3, "invalid": 0.02, "unmatched": 0.02}
"""How often each happens to a reward."""


@dataclass(slots=True)
class LateScorer:
    """Takes note of samples when their rollouts end, before their records are written, and scores them later."""

    broker: Broker
    topics: RunTopics
    seed: int = 0
    unwritten: list[tuple[str, float]] = field(default_factory=list)
    mistakes: dict[str, float] = field(default_factory=lambda: dict(_usual_mistakes))
    num_written: Counter[str] = field(default_factory=Counter)
    _random: random.Random = field(init=False)
    _writer: LateRewards = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._writer = LateRewards(self.broker, self.topics, scorer="test")

    def scored(self, replica: Replica) -> float:
        """The value that will be written for a rollout; any two of a group differ."""
        task = replica.task
        value = (task.group_id + replica.number) % 2 + 0.001 * replica.number
        self.unwritten.append((sample_id(task.group_id, replica.number, task.attempt), value))
        return value

    def write_some(self) -> None:
        """Write a random share of those that are due, in any order."""
        for _ in range(math.ceil(len(self.unwritten) * self._random.random())):
            self.write_one(self._random.randrange(1 << 30))

    def write_one(self, which: int) -> None:
        """Write one of those that are due."""
        if not self.unwritten:
            return
        name, value = self.unwritten.pop(which % len(self.unwritten))
        if self._happens("missing"):
            return
        if self._happens("misfit"):
            self._send(name, value + 40, turn_rewards=(1.0, 2.0, 3.0))
        if self._happens("unmatched"):
            self._send(f"g{10**6 + which}.r0.a0", value)
        if self._happens("invalid"):
            self._writer._producer.send(self.topics.rewards, 0, b"no reward")
            self.num_written["records"] += 1
        self._send(name, value, turn_rewards=(value,) if which % 3 == 0 else ())
        self.num_written["first"] += 1
        if self._happens("doubled"):
            self._send(name, value + 10)
        self._writer.flush()

    def write(self, name: str, value: float, turn_rewards: tuple[float, ...] = ()) -> None:
        """Write this one now, whether anybody has ordered such a rollout or not."""
        self._send(name, value, turn_rewards)
        self._writer.flush()

    def _happens(self, what: str) -> bool:
        happens = self._random.random() < self.mistakes[what]
        self.num_written[what] += happens
        return happens

    def _send(self, name: str, value: float, turn_rewards: tuple[float, ...] = ()) -> None:
        self._writer.send(name, value, turn_rewards=turn_rewards)
        self.num_written["records"] += 1

    def records(self) -> list[tuple[int, int, Reward]]:
        """The rewards on the topic, in order: offset, bytes, what it says."""
        found: list[tuple[int, int, Reward]] = []
        with self.broker.consumer(client_id="scores") as consumer:
            place = TopicPartition(self.topics.rewards, 0)
            consumer.assign({place: 0})
            while records := consumer.poll(0.0):
                for record in records:
                    value = record.value or b""
                    with suppress(SchemaError):
                        found.append((record.offset, len(value), decode_as(Reward, value)))
        return found


def rewards_that_may_count(
    records: list[tuple[int, int, Reward]], ledger: list[LedgerRecord], plan: Plan
) -> dict[str, list[tuple[int, Reward]]]:
    """Of each sample the rewards for groups within reach, as far as its group has room, worked out plainly."""
    found: defaultdict[str, list[tuple[int, Reward]]] = defaultdict(list)
    room: defaultdict[int, int] = defaultdict(lambda: plan.groups.num_replicas << 17)
    full: set[int] = set()
    closed, newest_closed, alpha, later = set[int](), -1, 0, list(reversed(ledger))
    for offset, num_bytes, reward in records:
        group, replica, _ = (int(number[1:]) for number in reward.sample_id.split("."))
        while later and later[-1].reward_position <= offset:
            record = later.pop()
            closed |= {each.group_id for each in record.closed_groups}
            newest_closed, alpha = max([-1, *closed]), max(alpha, math.ceil(record.alpha))
        queue = plan.groups_per_batch * (1 + alpha) + plan.redundant_groups
        is_within_reach = group <= newest_closed + 4 * queue
        numbers = {len(earlier.turn_rewards) for _, earlier in found[reward.sample_id]}
        is_doubled = 0 in numbers or len(reward.turn_rewards) in numbers
        if group in closed or replica >= plan.groups.num_replicas or not is_within_reach or is_doubled:
            continue
        if num_bytes + 1024 > room[group]:
            full.add(group)
        if group not in full:
            room[group] -= num_bytes + 1024
            found[reward.sample_id].append((offset, reward))
    return found


def rewards_named(ledger: list[LedgerRecord]) -> dict[str, int]:
    """The offset of the reward that the ledger names for each sample that it has."""
    return {
        verdict.sample_id: verdict.late_reward.offset
        for record in ledger
        for verdict in record.verdicts
        if verdict.late_reward is not None
    }


def first_valid(rewards: list[tuple[int, Reward]], sample: Sample) -> int | None:
    """The offset of the first of these that fits the turns of a sample."""
    for offset, reward in rewards:
        if len(reward.turn_rewards) in (0, sample.num_turns):
            return offset
    return None
