"""A run behind MirrorMaker 2 is audited and trained again from the mirror alone. Takes minutes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from support.broker_suite import told
from support.kafka_lines import KafkaNode, java_for, kafka_jars, lines
from support.mirror_maker import abort_some, alias, mirror_maker, mirror_properties, wait_for_mirror
from support.threaded_run import small_settings, whole_run

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.mirror import same_names
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import run_topic_names, runs_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.engine, pytest.mark.timeout(600)]

run_name = "mirrored"
num_aborted = 10


@dataclass
class Recorded:
    """A finished run on one cluster."""

    source: KafkaNode
    topics: RunTopics
    home: Path
    offset_map: Path

    @property
    def names(self) -> list[str]:
        return [*run_topic_names(self.topics), runs_topic(self.topics.prefix)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Iterator[Recorded]:
    """A run with aborted records in its ledger and its samples, and the map of its offsets."""
    newest = lines[-1]
    java, jars = java_for(newest), kafka_jars(newest, cache_directory)
    home = tmp_path_factory.mktemp("home")
    with KafkaNode(java, jars, home / "source") as node:
        broker = KafkaBroker(node.address)
        settings = small_settings(home, run_name, trainer={"engine": "torch"})
        with whole_run(broker, home, settings) as run:
            abort_some(broker, TopicPartition(run.topics.samples, 0), TopicPartition(run.topics.tasks, 0))
            run.dispatcher()
            run.trainer()
            run.worker()
            run.wait_for_version(1)
            # As a trainer that died inside its commit leaves them: more than the ledger has records behind them.
            for _ in range(num_aborted):
                abort_some(broker, TopicPartition(run.topics.steps, 0))
            run.wait_until_closed()
            run.audited()
            topics = run.topics
        offset_map = home / "offsets.gz"
        said = told(
            "export", run_name, "--offsets", str(offset_map), "--broker", node.address,
            "--set", f"run.prefix={topics.prefix}", home=home,
        )  # fmt: skip
        assert said[0] == 0, said[1]
        yield Recorded(node, topics, home, offset_map)


@pytest.mark.parametrize("policy", ["default", "identity"])
def test_it_is_audited_and_trained_again_from_the_mirror(
    policy: str, recorded: Recorded, tmp_path: Path, cache_directory: Path
) -> None:
    newest = lines[-1]
    java, jars = java_for(newest), kafka_jars(newest, cache_directory)
    prefix = "" if policy == "identity" else f"{alias}."
    names = {name: prefix + name for name in recorded.names}
    with ExitStack() as stack:
        target = stack.enter_context(KafkaNode(java, jars, tmp_path / "target"))
        text = mirror_properties(recorded.source.address, target.address, r"rollog-test\..*", policy)
        with mirror_maker(java, cache_directory, tmp_path / "mirror", text) as program:
            wait_for_mirror(program, KafkaBroker(recorded.source.address), KafkaBroker(target.address), names)
        shown_as = same_names if policy == "identity" else alias
        mirror = [
            "--broker", target.address, "--mirror", shown_as, "--set", f"run.prefix={recorded.topics.prefix}",
        ]  # fmt: skip
        by_map = ["--offset-map", str(recorded.offset_map)]
        check_clean(recorded, mirror, by_map)
        check_harm_is_named(recorded, KafkaBroker(target.address), prefix, [*mirror, *by_map])


def check_clean(recorded: Recorded, mirror: list[str], by_map: list[str]) -> None:
    """Audit and replay, by the map and by the ledger."""
    for how in ([], by_map):
        status, said = told("audit", run_name, *mirror, *how, home=recorded.home)
        assert status == 0, said
        assert "mirror" in said
    status, said = told("replay", run_name, *mirror, home=recorded.home)
    assert status == 0, said
    assert "EQUAL: 3 step(s)" in said


def check_harm_is_named(recorded: Recorded, target: KafkaBroker, prefix: str, mirror: list[str]) -> None:
    """Records that the original does not have are named with their places."""
    samples = prefix + recorded.topics.samples
    with target.producer(client_id="harm") as producer:
        offset = producer.send(samples, 0, b"nobody wrote this").offset(20)
    status, said = told("audit", run_name, *mirror, home=recorded.home)
    assert status == 1
    assert f"{samples}, partition 0, offset {offset}: added in the mirror" in said
