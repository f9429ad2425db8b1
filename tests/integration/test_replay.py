"""A recorded run, trained again from its topics: equal bytes are equal, everything else is named."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file, save_file
from support.recorded_steps import altered_copy, recording_of, replayed
from support.threaded_run import small_settings, whole_run

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError, EngineError, LedgerError, RunExists
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import weights_name
from rollog.run.replay_report import replay_line, verdict_line
from rollog.run.role_settings import trainer_settings
from schemas import Disposition, LedgerRecord, Step
from trainer.checkpoints import CheckpointStore
from trainer.model.arithmetic import pinned_fact, processor_facts
from trainer.recorded.counterfactual import Question, check_question, train_counterfactual
from trainer.recorded.distances import weights_distance
from trainer.recorded.environment import EnvironmentComparison, compare_environment
from trainer.recorded.history import recorded_groups
from trainer.recorded.redo import restore
from trainer.recorded.replay import recorded_span
from trainer.role import training_engine
from trainer.settings import amended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollog.kernel.broker.ports import Consumer
    from trainer.recorded.counterfactual import CounterfactualStep
    from trainer.recorded.redo import Recording
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine
same_environment = EnvironmentComparison(differences={})

num_steps = 4


class ReadingBroker:
    """A broker that can only be read, like an archive."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.address = broker.address

    def consumer(self, *, client_id: str, group_id: str | None = None) -> Consumer:
        assert group_id is None
        return self._broker.consumer(client_id=client_id)

    def producer(self, **_: object) -> object:
        raise AssertionError("a replay writes nothing")

    transactional_producer = admin = producer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryBroker, TrainerSettings]:
    """A finished run of four steps whose checkpoints are those of versions 2 and 4."""
    home = tmp_path_factory.mktemp("home")
    broker = MemoryBroker()
    settings = small_settings(home, "recorded", run={"num_steps": num_steps})
    with whole_run(broker, home, settings) as run:
        run.to_its_end()
        return broker, trainer_settings(settings, run.manifest, home)


@pytest.fixture
def recording(recorded: tuple[MemoryBroker, TrainerSettings], tmp_path: Path) -> Recording:
    broker, settings = recorded
    return recording_of(ReadingBroker(broker), settings, tmp_path / "downloads")  # type: ignore[arg-type]


def test_the_samples_of_a_step_are_read_by_one_assignment(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each assignment waits for the fetch under way: partition after partition a step takes a second longer."""
    with recording.broker.consumer(client_id="test") as consumer:
        entry = recording.history.read_step(consumer, recording.topics.steps, 1)
        places = {
            TopicPartition(recording.topics.samples, verdict.partition)
            for verdict in entry.record.verdicts
            if verdict.disposition is Disposition.TRAINED
        }
        assign, assigned = consumer.assign, []

        def assign_and_note(positions: Mapping[TopicPartition, int]) -> None:
            assigned.append(set(positions))
            assign(positions)

        monkeypatch.setattr(consumer, "assign", assign_and_note)
        payloads = PayloadStore(recording.store, recording.topics)
        recorded_groups(entry, consumer, recording.topics, payloads)
    assert len(places) > 1
    assert assigned == [places]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("begin", "end", "checkpoint", "versions"),
    [
        (0, 4, None, [1, 2, 3, 4]),
        (1, 3, None, [1, 2, 3]),
        (2, 3, "step-000002", [3]),
        (3, 4, "step-000002", [3, 4]),
    ],
)
def test_every_step_is_reproduced_and_nothing_is_changed(
    recording: Recording, begin: int, end: int, checkpoint: str | None, versions: list[int]
) -> None:
    before = contents(recording.settings.home)
    used, steps = replayed(recording, begin, end)
    assert used == checkpoint
    assert [step.version for step in steps] == versions
    assert [step.differing for step in steps] == [()] * len(versions)
    assert {step.weights_sha256 for step in steps} == {recording.history.state.weights[v] for v in versions}
    assert contents(recording.settings.home) == before
    assert (
        verdict_line(steps, same_environment) == f"EQUAL: {len(versions)} step(s) replayed, all as recorded"
    )


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        ("deepspeed", {"type": "tis", "kl_coefficient": 0.05, "entropy_coefficient": 0.01}),
        ("torch", {"type": "rloo", "kl_coefficient": 0.05}),
    ],
)
def test_proximal_and_reference_policies_are_the_same_again_in_a_replay(
    tmp_path: Path, engine: str, algorithm: dict[str, object]
) -> None:
    broker = MemoryBroker()
    trainer = {"num_minibatches": 2, "checkpoint_every_steps": 2, "engine": engine}
    settings = small_settings(tmp_path, "anchored", algorithm=algorithm, trainer=trainer)
    with whole_run(broker, tmp_path, settings) as run:
        run.to_its_end()
        recording = recording_of(broker, trainer_settings(settings, run.manifest, tmp_path), tmp_path / "d")
    for begin, checkpoint in ((0, None), (2, "step-000002")):
        used, steps = replayed(recording, begin, 3)
        assert used == checkpoint
        assert [step.differing for step in steps] == [()] * len(steps)
    statistics = recording.step(2).statistics
    assert {"mismatch_divergence", "stale_divergence"} & statistics.keys()
    assert {"reference_divergence", "reward_divergence"} & statistics.keys()
    assert any(name.startswith("reward_mean_lag_") for name in statistics)


@pytest.mark.parametrize("engine", ["deepspeed", "torch"])
def test_a_value_head_and_adapters_are_the_same_again_in_a_replay(tmp_path: Path, engine: str) -> None:
    broker = MemoryBroker()
    trainer = {
        "num_epochs": 2,
        "num_minibatches": 2,
        "checkpoint_every_steps": 2,
        "engine": engine,
        "lora_rank": 4,
    }
    settings = small_settings(
        tmp_path, "valued", algorithm={"type": "ppo", "advantage": "gae"}, trainer=trainer
    )
    with whole_run(broker, tmp_path, settings) as run:
        run.to_its_end()
        recording = recording_of(broker, trainer_settings(settings, run.manifest, tmp_path), tmp_path / "d")
    assert "peft" in recording.genesis.versions
    assert len(recording.step(2).losses) == 4
    assert {"value_mean", "value_loss"} <= recording.step(2).statistics.keys()
    for begin, checkpoint in ((0, None), (2, "step-000002")):
        used, steps = replayed(recording, begin, 3)
        assert used == checkpoint
        assert [step.differing for step in steps] == [()] * len(steps)
    plain = {"algorithm.advantage": "batch", "trainer.lora_rank": 0}
    question = Question(name="plain", begin=0, end=3, changes=plain)
    assert len(answer(recording, question, tmp_path / "answer")) == 3


def test_a_range_without_a_step_is_refused(recording: Recording) -> None:
    assert recorded_span(recording.history, 1, None) == (1, num_steps)
    for begin, end in ((2, 2), (0, 5), (3, 1)):
        with pytest.raises(ConfigError, match="versions 0 to 4"):
            recorded_span(recording.history, begin, end)


def altered_step(version: int, change: Callable[[Step], Step]) -> Callable[[LedgerRecord], LedgerRecord]:
    def alter(record: LedgerRecord) -> LedgerRecord:
        if not isinstance(record.body, Step) or record.version != version:
            return record
        return replace(record, body=change(record.body))

    return alter


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda step: replace(step, losses=(step.losses[0] + 1e-9, *step.losses[1:])), ("loss",)),
        (lambda step: replace(step, gradient_norms=step.gradient_norms[:1]), ("gradient norm",)),
        (lambda step: replace(step, weights_sha256="e" * 64), ("weights",)),
    ],
    ids=["loss", "gradient-norm", "weights"],
)
def test_a_step_whose_record_was_altered_is_named(
    recorded: tuple[MemoryBroker, TrainerSettings],
    tmp_path: Path,
    change: Callable[[Step], Step],
    differing: tuple[str, ...],
) -> None:
    broker, settings = recorded
    copy = altered_copy(broker, settings, altered_step(2, change))
    _, steps = replayed(recording_of(copy, settings, tmp_path), 0, 3)
    assert [step.differing for step in steps] == [(), differing, ()]
    assert "DIFFERS" in replay_line(steps[1])
    assert "the first is that of version 2" in verdict_line(steps, same_environment)
    assert json.dumps([step.figures() for step in steps], allow_nan=False)


def test_other_samples_than_the_recorded_ones_are_refused(
    recorded: tuple[MemoryBroker, TrainerSettings], tmp_path: Path
) -> None:
    def alter(record: LedgerRecord) -> LedgerRecord:
        return replace(
            record, verdicts=tuple(replace(verdict, digest=bytes(16)) for verdict in record.verdicts)
        )

    broker, settings = recorded
    with pytest.raises(LedgerError, match="is not the record that the ledger says was trained"):
        replayed(recording_of(altered_copy(broker, settings, alter), settings, tmp_path), 0, 1)


def test_where_bits_differ_distances_are_reported_and_nothing_is_called_equal(recording: Recording) -> None:
    settings = amended(recording.settings, {"optimizer.epsilon": 1e-6})
    elsewhere = replace(recording, settings=settings)
    _, steps = replayed(elsewhere, 0, 2)
    assert all("weights" in step.differing for step in steps)
    distances = [step.distance for step in steps]
    assert all(
        distance is not None and distance.max_absolute > 0 and 0 < distance.relative < 1
        for distance in distances
    )
    assert steps[0].loss_difference == pytest.approx(0.0, abs=1e-2)
    another = EnvironmentComparison(differences={"torch": ("1.0", "2.0")})
    assert "equal" not in verdict_line(steps, another).lower()
    assert "torch was 1.0, is 2.0" in verdict_line(steps, another)


def test_without_the_published_file_there_is_no_distance(recording: Recording, tmp_path: Path) -> None:
    first = weights_name(0, recording.history.state.weights[0])
    store = type(recording.store)(str(tmp_path / "store"))
    data = (recording.settings.home / "weights" / first).read_bytes()
    store.publish(0, data)
    settings = amended(recording.settings, {"optimizer.epsilon": 1e-6})
    _, steps = replayed(replace(recording, settings=settings, store=store), 0, 1)
    assert steps[0].differing
    assert steps[0].distance is None


def test_the_distance_of_weights_is_worked_out_over_all_tensors(recording: Recording, tmp_path: Path) -> None:
    name = weights_name(0, recording.history.state.weights[0])
    published = recording.settings.home / "weights" / name
    tensors = load_file(published)
    moved = next(iter(tensors))
    tensors[moved] = tensors[moved] + 0.5
    save_file(tensors, tmp_path / "moved")
    distance = weights_distance((tmp_path / "moved").read_bytes(), published)
    norm = sum(tensor.double().square().sum().item() for tensor in load_file(published).values()) ** 0.5
    assert distance.max_absolute == pytest.approx(0.5, abs=1e-6)
    assert distance.relative == pytest.approx(0.5 * tensors[moved].numel() ** 0.5 / norm, rel=1e-5)


def test_another_environment_is_named(recording: Recording) -> None:
    with closing(training_engine(recording.settings)) as engine:
        restore(engine, recording, [], at_most=0)
        here = engine.describe()
    assert compare_environment(recording.genesis, here) == same_environment
    then = replace(
        recording.genesis,
        machine="another",
        versions=recording.genesis.versions | {"torch": "0.1", "kafka": "1"},
    )
    found = compare_environment(then, here)
    assert found.differences.keys() == {"machine", "torch"}
    assert found.differences["torch"] == ("0.1", here.versions["torch"])
    assert "this is not where the run began (machine was another" in found.cause


def test_what_an_older_genesis_does_not_hold_accuses_nobody(recording: Recording) -> None:
    with closing(training_engine(recording.settings)) as engine:
        restore(engine, recording, [], at_most=0)
        here = engine.describe()
    recorded = recording.genesis.versions
    older = replace(
        recording.genesis, versions={name: recorded[name] for name in recorded if name not in processor_facts}
    )
    found = compare_environment(older, here)
    assert not found.differences
    assert set(found.not_recorded) == processor_facts
    assert "this shows nothing" in found.cause
    assert "may have been changed" not in found.cause
    assert "may have been changed" in compare_environment(recording.genesis, here).cause


def test_another_processor_decides_nothing_where_instructions_are_pinned(recording: Recording) -> None:
    with closing(training_engine(recording.settings)) as engine:
        restore(engine, recording, [], at_most=0)
        here = engine.describe()
    elsewhere = recording.genesis.versions | {"processor": "another"}
    pinned = {pinned_fact: "avx2"}
    assert compare_environment(replace(recording.genesis, versions=elsewhere), here).differences.keys() == {
        "processor"
    }
    assert (
        compare_environment(
            replace(recording.genesis, versions=elsewhere | pinned),
            replace(here, versions=dict(here.versions) | pinned),
        )
        == same_environment
    )


def answer(recording: Recording, question: Question, directory: Path) -> list[CounterfactualStep]:
    checkpoints = CheckpointStore(recording.settings.checkpoints).complete()
    with closing(training_engine(amended(recording.settings, question.changes))) as engine:
        checkpoint = restore(engine, recording, checkpoints, at_most=question.begin)
        stands_at = 0 if checkpoint is None else checkpoint.version
        return list(
            train_counterfactual(engine, recording, question, stands_at=stands_at, directory=directory)
        )


@pytest.mark.parametrize(
    ("begin", "changes"),
    [
        (0, {"optimizer.learning_rate": 1e-2, "algorithm.clip_high": 0.1}),
        (3, {"optimizer.learning_rate": 1e-2}),
        (0, {"trainer.num_minibatches": 1}),
        (1, {"algorithm.type": "decoupled_ppo", "algorithm.kl_coefficient": 0.1}),
    ],
    ids=["from-the-start", "from-version-3", "one-minibatch", "another-algorithm"],
)
def test_other_settings_give_other_weights_and_the_answer_is_marked(
    recording: Recording, tmp_path: Path, begin: int, changes: dict[str, object]
) -> None:
    before = contents(recording.settings.home)
    question = Question(name="what-if", begin=begin, end=num_steps, changes=changes)
    check_question(recording, question)
    steps = answer(recording, question, tmp_path / "answer")
    assert [step.version for step in steps] == list(range(begin + 1, num_steps + 1))
    assert all(step.weights_sha256 != step.recorded_sha256 for step in steps)
    for step in steps:
        body = recording.step(step.version)
        assert step.recorded.loss == pytest.approx(sum(body.losses) / len(body.losses))
    for name in ("manifest.json", "summary.json"):
        written = json.loads((tmp_path / "answer" / name).read_text())
        assert (written["kind"], written["recorded_run"]) == ("counterfactual", "recorded")
        assert written["changes"] == changes
    summary = json.loads((tmp_path / "answer" / "summary.json").read_text())
    assert summary["weights_sha256"] == steps[-1].weights_sha256
    assert (tmp_path / "answer" / "weights" / summary["weights"]).is_file()
    assert len(summary["steps"]) == len(steps)
    assert contents(recording.settings.home) == before


def test_another_algorithm_comes_with_its_own_defaults(recording: Recording, tmp_path: Path) -> None:
    alone = {"algorithm.type": "dr_grpo"}
    in_full = {**alone, "algorithm.normalize_std": False, "algorithm.aggregation": "sequence_sum"}
    in_full["algorithm.clip_high"] = 0.2
    first, second = (
        answer(recording, Question(name="q", begin=0, end=2, changes=changes), tmp_path / name)
        for name, changes in (("alone", alone), ("in-full", in_full))
    )
    assert [step.weights_sha256 for step in first] == [step.weights_sha256 for step in second]


def test_the_question_with_the_recorded_settings_is_answered_by_the_recorded_weights(
    recording: Recording, tmp_path: Path
) -> None:
    same = recording.settings.optimizer.learning_rate
    question = Question(name="same", begin=2, end=4, changes={"optimizer.learning_rate": same})
    steps = answer(recording, question, tmp_path / "answer")
    assert all(step.weights_sha256 == step.recorded_sha256 for step in steps)


def test_an_answer_is_never_written_over(recording: Recording, tmp_path: Path) -> None:
    question = Question(name="twice", begin=0, end=1, changes={"optimizer.learning_rate": 1e-2})
    with pytest.raises(RunExists, match="--into"):
        answer(recording, question, tmp_path)


@pytest.mark.parametrize(
    ("begin", "changes", "message"),
    [
        (
            0,
            {"groups.group_size": 2},
            r"groups\.group_size cannot be changed in a replay.*optimizer\.learning_rate",
        ),
        (0, {"optimizer.lr": 2}, r"optimizer\.lr cannot be changed"),
        (0, {"optimizer.learning_rate": -1.0}, "greater than 0"),
        (2, {"trainer.zero_stage": 2}, "begin with version 0"),
        (
            2,
            {"algorithm.advantage": "gae"},
            r"algorithm\.advantage makes another engine.*begin with version 0",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(
    recording: Recording, begin: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_question(recording, Question(name="no", begin=begin, end=4, changes=changes))


def test_a_plan_for_other_ranks_is_refused(recording: Recording) -> None:
    assert recording.history.first is not None
    first = replace(recording.history.first, body=replace(recording.genesis, world_size=2))
    other = replace(recording, history=replace(recording.history, first=first))
    with (
        closing(training_engine(recording.settings)) as engine,
        pytest.raises(EngineError, match=r"trained on 2 rank\(s\), here are 1"),
    ):
        restore(engine, other, [], at_most=0)
