"""Names, settings and checks of a run's topics."""

from __future__ import annotations

import pytest

from rollog.kernel.broker.limits import (
    dead_letter_margin_bytes,
    largest_record_limit_bytes,
    smallest_record_limit_bytes,
)
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.broker.topics import (
    RunTopics,
    check_topics,
    ensure_topics,
    not_created,
    run_topic_names,
    runs_topic,
    topic_differences,
    topic_specs,
)
from rollog.kernel.errors import ConfigError, TopicMismatch
from rollog.settings.run import BrokerConfig

topics = RunTopics("team", "exp-1")


def specs_by_name(broker: BrokerConfig) -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in topic_specs(topics, broker)}


def test_names_hold_prefix_and_run() -> None:
    assert topics.samples == "team.exp-1.samples"
    assert topics.dead_letters == "team.exp-1.dead-letters"
    assert runs_topic("team") == "team.runs"
    assert topics.dispatcher_transactional_id != topics.trainer_transactional_id
    assert len(set(run_topic_names(topics))) == 8
    assert all(name.startswith("team.exp-1.") for name in run_topic_names(topics))


def test_every_topic_takes_the_brokers_time_and_keeps_its_records() -> None:
    specs = specs_by_name(BrokerConfig(min_insync_replicas=2, replication_factor=3))
    assert set(specs) == {*run_topic_names(topics), "team.runs"}
    for spec in specs.values():
        assert spec.config["message.timestamp.type"] == "LogAppendTime"
        assert spec.config["min.insync.replicas"] == "2"
        assert spec.replication_factor == 3
    compacted = {name for name, spec in specs.items() if spec.config["cleanup.policy"] == "compact"}
    assert compacted == {topics.workers, "team.runs"}
    assert all(spec.config["retention.ms"] == "-1" for name, spec in specs.items() if name not in compacted)


def test_partitions_and_record_limits_follow_the_configuration() -> None:
    broker = BrokerConfig(samples_partitions=6, max_workers=9, max_record_bytes=1 << 20)
    specs = specs_by_name(broker)
    partitions = {name.rpartition(".")[2]: spec.num_partitions for name, spec in specs.items()}
    assert partitions == {
        "tasks": 9,
        "samples": 6,
        "evaluations": 6,
        "steps": 1,
        "weights": 1,
        "control": 1,
        "workers": 1,
        "dead-letters": 1,
        "runs": 1,
    }
    for name in (topics.samples, topics.evaluations, topics.steps):
        assert specs[name].config["max.message.bytes"] == str(1 << 20)
    assert specs[topics.dead_letters].config["max.message.bytes"] == str((1 << 20) + dead_letter_margin_bytes)


def test_records_larger_than_a_request_may_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_record_bytes"):
        topic_specs(topics, BrokerConfig(max_record_bytes=largest_record_limit_bytes + 1))


def test_missing_topics_are_created_and_others_left_alone() -> None:
    specs = topic_specs(topics, BrokerConfig())
    with MemoryBroker().admin() as admin:
        assert admin.create_topics(specs[:2]) == [spec.name for spec in specs[:2]]
        assert ensure_topics(admin, specs) == [spec.name for spec in specs[2:]]
        assert ensure_topics(admin, specs) == []


def test_every_difference_is_named_with_a_remedy() -> None:
    broker = MemoryBroker()
    wanted = topic_specs(topics, BrokerConfig())
    with broker.admin() as admin:
        admin.create_topics([TopicSpec(name=topics.samples, num_partitions=3)])
        with pytest.raises(TopicMismatch) as caught:
            check_topics(admin, wanted)
    told = str(caught.value)
    assert f"{topics.tasks} does not exist" in told
    assert f"{topics.samples} has 3 partitions, not 4" in told
    assert f"{topics.samples} has message.timestamp.type = CreateTime, not LogAppendTime" in told
    assert f"{topics.samples} has retention.ms = 604800000, not -1" in told
    assert "kafka-configs --alter" in told


def test_more_room_and_more_replicas_than_needed_are_no_difference() -> None:
    wanted = TopicSpec(
        name="t",
        num_partitions=1,
        replication_factor=2,
        config={"max.message.bytes": "1000000", "min.insync.replicas": "1", "segment.bytes": "1"},
    )
    roomy = TopicSpec(
        name="t",
        num_partitions=1,
        replication_factor=3,
        config={"max.message.bytes": "2000000", "min.insync.replicas": "2"},
    )
    assert topic_differences(wanted, roomy) == []
    narrow = TopicSpec(
        name="t", num_partitions=1, replication_factor=1, config={"max.message.bytes": "999999"}
    )
    assert len(topic_differences(wanted, narrow)) == 2


def test_a_smaller_record_limit_is_named_with_what_the_run_may_set_instead() -> None:
    wanted = TopicSpec(name="t", num_partitions=1, config={"max.message.bytes": str(16 << 20)})
    existing = TopicSpec(name="t", num_partitions=1, config={"max.message.bytes": "1048588"})
    (line,) = topic_differences(wanted, existing)
    assert "broker.max_record_bytes = 983052" in line
    assert "broker.inline_sample_bytes" in line


def test_a_record_limit_below_what_any_run_may_set_is_named_without_a_setting_that_is_refused() -> None:
    least = smallest_record_limit_bytes + dead_letter_margin_bytes
    wanted = TopicSpec(name="t", num_partitions=1, config={"max.message.bytes": str(16 << 20)})
    for found, remedy in ((least, "broker.max_record_bytes = 65536"), (least - 1, f"less than {least}")):
        existing = TopicSpec(name="t", num_partitions=1, config={"max.message.bytes": str(found)})
        (line,) = topic_differences(wanted, existing)
        assert remedy in line
    assert BrokerConfig(max_record_bytes=smallest_record_limit_bytes)


def test_a_topic_that_a_cluster_refuses_is_named_with_what_was_asked_for_and_the_ways_out() -> None:
    wanted = TopicSpec(name="t", num_partitions=3, config={"max.message.bytes": str(16 << 20)})
    said = not_created(wanted, "at most 100")
    for word in (
        "topic t with 3 partitions, 1 replicas and max.message.bytes = 16777216: at most 100",
        "rollog topics print",
        "broker.max_record_bytes",
        "broker.inline_sample_bytes",
    ):
        assert word in said
    assert "max_record_bytes" not in not_created(TopicSpec(name="t", num_partitions=1), "no")
