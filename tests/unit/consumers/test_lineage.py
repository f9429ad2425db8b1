"""Tracing samples, steps, versions and prompts through a whole run, on its broker and in its archive."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from support.broker_topics import read_to_end
from support.builders import a_sample
from support.recorded_run import recorded_run, store_of
from support.simulated_plan import Plan

from consumers.archive import WeightsChoice, export_archive
from consumers.ledger import read_ledger
from consumers.lineage import Lineage
from consumers.reason_words import reason_in_words
from rollog.cli.main import cli
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError
from rollog.rules.reasons import named_reasons
from schemas import Disposition, Kind, Prompt, RolloutTask, Sample, Verdict, sample_id
from schemas.codec import decode, decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result
    from support.simulated_run import SimulatedRun

    from rollog.kernel.broker.ports import Record


@pytest.fixture
def run() -> Iterator[SimulatedRun]:
    """A prompt whose rollouts always fail is among the others."""
    with recorded_run(Plan(num_steps=4, poisoned_prompt=1)) as run:
        yield run


def verdicts(run: SimulatedRun, disposition: Disposition) -> list[tuple[int, Verdict]]:
    return [
        (entry.record.version, verdict)
        for entry in read_ledger(run.broker, run.topics)
        for verdict in entry.record.verdicts
        if verdict.disposition is disposition
    ]


def num_verdicts_held() -> int:
    gc.collect()
    return sum(isinstance(held, Verdict) for held in gc.get_objects())


def test_a_lineage_holds_no_verdicts(run: SimulatedRun) -> None:
    before = num_verdicts_held()
    traces = Lineage(run.broker, run.topics)
    assert traces.step(2)["samples"]
    assert num_verdicts_held() == before


def test_a_trained_sample_leads_to_its_task_prompt_versions_and_step(run: SimulatedRun) -> None:
    version, verdict = verdicts(run, Disposition.TRAINED)[-1]
    answer = Lineage(run.broker, run.topics).sample(verdict.sample_id)
    (record,) = answer["records"]
    stored = next(
        decode_as(Sample, each.value or b"")
        for each in read_to_end(run.broker, run.topics.samples, [verdict.partition])
        if each.offset == verdict.offset
    )
    assert record["disposition"]["disposition"] == "trained"
    assert (record["disposition"]["step"], record["disposition"]["lag"]) == (version, verdict.lag)
    assert (record["worker_id"], record["reward"]) == (stored.worker_id, stored.reward)
    assert [each["version"] for each in record["segments"]] == [each.version for each in stored.segments]
    (task,) = answer["tasks"]
    assert (task["task_id"], task["attempt"]) == (stored.task_id, stored.attempt)
    assert answer["prompt"]["prompt_id"] == stored.prompt_id
    assert {each["sample_id"] for each in answer["attempts"]} >= {verdict.sample_id}


def test_the_prompt_of_a_training_sample_is_not_that_of_an_evaluation_with_its_id(run: SimulatedRun) -> None:
    _, verdict = verdicts(run, Disposition.TRAINED)[-1]
    before = Lineage(run.broker, run.topics).sample(verdict.sample_id)["prompt"]
    (order,) = [
        task
        for _, task in tasks_of(run)
        if sample_id(task.group_id, task.replica, task.attempt) == verdict.sample_id
    ]
    other = replace(order, kind=Kind.EVALUATION, task_id="e", prompt=Prompt(prompt_id="other", text="?"))
    sample = replace(a_sample(0, 0), sample_id=verdict.sample_id, task_id="e", kind=Kind.EVALUATION)
    run.hand.send(run.topics.tasks, 0, encode(other), headers=headers_of(other))
    run.hand.send(run.topics.evaluations, 0, encode(sample), headers=headers_of(sample))
    traces = Lineage(run.broker, run.topics)
    answer = traces.sample(verdict.sample_id)
    assert answer["prompt"] == before
    assert [task["kind"] for task in answer["tasks"]] == ["training"]
    assert [record["kind"] for record in answer["records"]] == ["training"]
    assert {attempt["disposition"] for attempt in answer["attempts"]} == {"trained"}
    num_others = answer["other_kinds"]["evaluation"]
    asked = traces.sample(verdict.sample_id, Kind.EVALUATION)
    assert len(asked["records"]) == num_others
    assert asked["other_kinds"] == {"training": 1}
    assert {record["kind"] for record in asked["records"]} == {"evaluation"}
    assert all(record["disposition"] is None for record in asked["records"])


def test_an_id_that_only_evaluations_have_leads_to_them(run: SimulatedRun) -> None:
    sample = replace(a_sample(90, 0), sample_id="g90.r0.a0", kind=Kind.EVALUATION)
    run.hand.send(run.topics.evaluations, 0, encode(sample), headers=headers_of(sample))
    traces = Lineage(run.broker, run.topics)
    answer = traces.sample("g90.r0.a0")
    assert (answer["kind"], answer["other_kinds"]) == ("evaluation", {})
    with pytest.raises(ConfigError, match=r"no training sample 'g90\.r0\.a0'; 1 of the other kind"):
        traces.sample("g90.r0.a0", Kind.TRAINING)


def test_the_samples_of_a_disposition_are_listed_with_prompt_and_reason(run: SimulatedRun) -> None:
    answer = Lineage(run.broker, run.topics).disposition(Disposition.FAILED)
    judged = [verdict for _, verdict in verdicts(run, Disposition.FAILED)]
    assert [each["sample_id"] for each in answer["samples"]] == [each.sample_id for each in judged][:50]
    assert {each["prompt_id"] for each in answer["samples"]} == {"1"}
    assert {each["why"] for each in answer["samples"]} == {"its rollout failed; the record says how"}
    assert (answer["num_samples"], answer["num_more"]) == (len(judged), max(0, len(judged) - 50))


def test_of_many_samples_of_a_disposition_the_first_are_listed_and_the_rest_counted() -> None:
    with recorded_run(Plan(num_steps=12, group_size=8)) as run:
        answer = Lineage(run.broker, run.topics).disposition(Disposition.TRAINED)
        assert len(answer["samples"]) == 50
        assert answer["num_more"] == len(verdicts(run, Disposition.TRAINED)) - 50 > 0


def test_every_reason_that_rules_give_has_words() -> None:
    assert all(reason_in_words(Disposition.FILTERED, reason) for reason in named_reasons)
    assert reason_in_words(Disposition.DEAD, "drawn with seed 7") is None
    assert reason_in_words(Disposition.TRAINED, "") is None


def tasks_of(run: SimulatedRun) -> list[tuple[Record, RolloutTask]]:
    records = read_to_end(run.broker, run.topics.tasks, range(3))
    decoded = [(record, decode(record.value or b"")) for record in records]
    return [(record, task) for record, task in decoded if isinstance(task, RolloutTask)]


def test_the_task_of_a_deleted_sample_is_still_told(run: SimulatedRun) -> None:
    _, verdict = verdicts(run, Disposition.TRAINED)[0]
    traces = Lineage(run.broker, run.topics)
    (task,) = traces.sample(verdict.sample_id)["tasks"]
    with run.broker.admin() as admin:
        admin.delete_records({TopicPartition(run.topics.samples, verdict.partition): verdict.offset + 1})
    assert traces.sample(verdict.sample_id)["tasks"] == [task]


def test_failed_attempts_are_all_told_with_their_errors(run: SimulatedRun) -> None:
    _, verdict = verdicts(run, Disposition.FAILED)[0]
    answer = Lineage(run.broker, run.topics).sample(verdict.sample_id)
    assert answer["records"][0]["error"]
    assert [each["status"] for each in answer["attempts"]] == ["failed"] * len(answer["attempts"])
    assert len(answer["attempts"]) > 1
    assert answer["prompt"]["prompt_id"] == "1"


def test_a_step_names_its_samples_in_order_and_a_version_its_ancestors(run: SimulatedRun) -> None:
    traces = Lineage(run.broker, run.topics)
    step = traces.step(2)
    trained = [verdict.sample_id for version, verdict in verdicts(run, Disposition.TRAINED) if version == 2]
    assert [each["sample_id"] for each in step["samples"]] == trained
    version = traces.version(2)
    assert version["weights_sha256"] == step["weights_sha256"]
    assert version["file"] in store_of(run).names()
    assert [(each["version"], each["made_by"]) for each in version["ancestors"]] == [
        (1, "step"),
        (0, "genesis"),
    ]
    assert version["ancestors"][0]["weights_sha256"] == step["weights_sha256_before"]


def test_a_prompt_leads_to_every_attempt_at_it(run: SimulatedRun) -> None:
    answer = Lineage(run.broker, run.topics).prompt("1")
    stored = [
        decode_as(Sample, record.value or b"")
        for record in read_to_end(run.broker, run.topics.samples, range(2))
        if record.value != b"no sample"
    ]
    found = [attempt["sample_id"] for group in answer["groups"] for attempt in group["attempts"]]
    assert sorted(found) == sorted(sample.sample_id for sample in stored if sample.prompt_id == "1")
    assert answer["groups"][0]["outcome"] == "incomplete"


def test_a_deleted_sample_is_told_as_far_as_the_ledger_knows_it(run: SimulatedRun) -> None:
    _, verdict = verdicts(run, Disposition.TRAINED)[0]
    with run.broker.admin() as admin:
        admin.delete_records({TopicPartition(run.topics.samples, verdict.partition): verdict.offset + 1})
    answer = Lineage(run.broker, run.topics).sample(verdict.sample_id)
    assert answer["records"][0]["disposition"]["disposition"] == "trained"
    assert "deleted" in answer["records"][0]["unreadable"]


def test_what_a_run_does_not_have_is_an_error_that_names_it(run: SimulatedRun) -> None:
    traces = Lineage(run.broker, run.topics)
    with pytest.raises(ConfigError, match="g99"):
        traces.sample("g99.r0.a0")
    with pytest.raises(ConfigError, match="no step 0"):
        traces.step(0)
    with pytest.raises(ConfigError, match="0 to 4"):
        traces.version(5)
    with pytest.raises(ConfigError, match="'x'"):
        traces.prompt("x")


def test_the_command_reads_an_archive_as_text_and_as_json(run: SimulatedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.NONE)
    traces = Lineage(run.broker, run.topics)
    _, verdict = verdicts(run, Disposition.TRAINED)[0]

    def lineage(*words: str) -> Result:
        return CliRunner().invoke(cli, ["lineage", "--archive", str(path), *words])

    asked: list[tuple[tuple[str, str], Any]] = [
        (("--sample", verdict.sample_id), traces.sample(verdict.sample_id)),
        (("--step", "1"), traces.step(1)),
        (("--version", "3"), traces.version(3)),
        (("--prompt", "1"), traces.prompt("1")),
        (("--disposition", "failed"), traces.disposition(Disposition.FAILED)),
    ]
    for words, expected in asked:
        assert json.loads(lineage(*words, "--json").output) == expected
        text = lineage(*words)
        assert text.exit_code == 0
        assert words[1] in text.output
    assert isinstance(lineage().exception, ConfigError)
    assert isinstance(lineage("--step", "1", "--kind", "training").exception, ConfigError)
    assert "there are dead, failed" in str(lineage("--disposition", "filtred").exception)
    assert isinstance(lineage("--step", "1", "--prompt", "1").exception, ConfigError)
