"""The program in Java of docs/writers.md answers the tasks of a run, and what it writes is trained."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.java import compiled, run_java
from support.small_registry import small_registry
from support.threaded_run import small_settings, whole_run
from support.waiting import wait_until

from rollog.rules.reasons import other_writer
from rollog.run.framing import framed_broker
from schemas import Disposition, TaskBatch
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(2400)]

patience_seconds = 600.0
root = Path(__file__).parents[2]
source = root / "examples" / "foreign_writer" / "SampleWriter.java"


@contextmanager
def sections(framing: str, home: Path) -> Iterator[dict[str, dict[str, object]]]:
    """Settings of a run that admits the writer, and whose own worker gets no rewards before it has been trained."""
    (home / "slowly").touch()
    settings: dict[str, dict[str, object]] = {
        "groups": {"groups_per_batch": 2, "group_size": 4, "other_writers": ["teacher"]},
        "reward": {
            "function": "support.loop_rewards:even_words_once_allowed",
            "num_processes": 1,
            "timeout_seconds": 600.0,
            "environment": ["ROLLOG_TEST_PACE"],
        },
    }
    if framing == "single-object":
        yield settings
        return
    with small_registry() as registry:
        broker = {"samples_partitions": 2, "max_workers": 3, "framing": "registry"}
        yield {**settings, "broker": broker, "registry": {"url": registry.url}}


@pytest.mark.parametrize("framing", ["single-object", "registry"])
def test_samples_of_a_program_in_java_are_trained(  # noqa: PLR0917 - fixtures
    framing: str,
    kafka_broker: KafkaBroker,
    run_topics: RunTopics,
    tmp_path: Path,
    cache_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLOG_TEST_PACE", str(tmp_path / "slowly"))
    (tmp_path / "classes").mkdir()
    program = compiled(source, tmp_path / "classes", cache_directory)
    with sections(framing, tmp_path) as chosen:
        settings = small_settings(tmp_path, run_topics.run, **chosen)
        broker = framed_broker(kafka_broker, settings)
        with whole_run(broker, tmp_path, settings) as run:
            place = (
                ("--registry", settings.registry.url or "")
                if framing == "registry"
                else ("--schemas", str(root / "schemas"))
            )
            command = [*program, "--broker", kafka_broker.address, *place, "--writer", "teacher"]
            command += ["--run", f"{run_topics.prefix}.{run_topics.run}"]
            command += ["--tokenizer", str(tmp_path / "model" / "tokenizer.json")]
            writer = run_java(command, tmp_path / "writer.log")
            try:
                run.dispatcher(), run.trainer(), run.worker()
                run.wait_for_version(1, patience_seconds)
                (tmp_path / "slowly").unlink()
                ledger = run.wait_until_closed(patience_seconds)
                ended = wait_until(
                    lambda: writer.poll() is not None, patience_seconds, "the writer to end at Stop"
                )
            finally:
                writer.kill()
                writer.wait()
        told = (tmp_path / "writer.log").read_text()
        assert ended, told
        assert writer.returncode == 0, told
        check(run, told)
        assert ledger[-1].version == 3


def check(run: WholeRun, told: str) -> None:
    """What it wrote is in the log, trained and named as another writer's; the audit finds nothing."""
    samples = run.read_samples()
    written = Counter(sample.worker_id for sample in samples)
    assert f"teacher wrote {written['teacher']} samples" in told
    batched = {(task.group_id, task.replica) for task in tasks_in_batches(run)}
    answered = {(sample.group_id, sample.replica) for sample in samples if sample.worker_id == "teacher"}
    assert batched & answered, (batched, answered)
    trained = Counter(
        verdict.reason
        for record in run.ledger()
        for verdict in record.verdicts
        if verdict.disposition is Disposition.TRAINED
    )
    assert trained[other_writer] >= 8, told
    dead = [v for record in run.ledger() for v in record.verdicts if v.disposition is Disposition.DEAD]
    assert dead == []
    report = run.audited(head=run.view().ledger_head)
    assert any("teacher" in line for line in report.lines()), report.lines()


def tasks_in_batches(run: WholeRun) -> list[RolloutTask]:
    """Those that were ordered together with others in one record."""
    found = [
        decode(record.value) for record in read_to_end(run.broker, run.topics.tasks, range(3)) if record.value
    ]
    return [task for batch in found if isinstance(batch, TaskBatch) for task in batch.tasks]
