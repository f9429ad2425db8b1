"""A recorded run verified by a real model: as it was recorded, and with faults that no digest shows."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from support.altered_samples import relabelled, with_samples
from support.altered_topics import RecordedTopics
from support.builders import a_sample
from support.tiny_engine import max_context_tokens, save_versions, vocabulary_size

from consumers.audit.auditor import audit_run
from consumers.verification.pieces import pieces_of
from consumers.verification.selection import Selection
from producers.engines.vllm_prefill import vllm_prefill
from rollog.cli.verify import verify
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.errors import ConfigError, DataError
from rollog.run.recorded_run import open_run
from rollog.run.request import RecordedRunRequest, RunRequest
from rollog.run.role_settings import trainer_settings
from rollog.run.verifying import VerifyRequest, verify_recorded, verify_run
from rollog.settings.generation import RolloutConfig
from rollog.settings.run import ModelConfig
from schemas import Sample, float32_array, int32_array
from schemas.codec import decode_as
from trainer.recorded.prefill import PolicyPrefill, bfloat16_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consumers.verification.ports import Scorer
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.verifying import VerifyOutcome
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine

recorded = Path(__file__).parents[1] / "data" / "recorded"
other_worker = "worker-of-test"


def asked(*assignments: str) -> RecordedRunRequest:
    common = RunRequest(config=None, home=Path("unused"), assignments=assignments, run=None, broker=None)
    return RecordedRunRequest(run=None, archive=recorded / "run.zip", common=common)


@dataclass(frozen=True)
class Bench:
    """The archive, opened, and its model."""

    run: RecordedRun
    settings: TrainerSettings
    scorer: Scorer
    topics: RecordedTopics
    directory: Path

    def verified(self, edit: Callable[[Sample], Sample] | None = None, **selected: object) -> VerifyOutcome:
        """The outcome over the archive, with its samples edited."""
        topics = self.topics if edit is None else with_samples(self.topics, self.run.topics, edit)
        run = replace(self.run, broker=topics)
        request = VerifyRequest(selection=Selection(**selected))  # type: ignore[arg-type]
        return verify_recorded(run, self.settings, self.scorer, request, self.directory)

    def samples(self) -> list[Sample]:
        return [decode_as(Sample, record.value or b"") for record in self.topics.all(self.run.topics.samples)]

    def sha256(self, version: int) -> str:
        for record in self.topics.ledger(self.run.topics.steps):
            if record.version == version and record.body is not None:
                return record.body.weights_sha256  # type: ignore[union-attr]
        raise AssertionError(f"no version {version}")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("downloads")
    with open_run(asked(f"model.path={recorded / 'model'}")) as run:
        settings = trainer_settings(run.settings, run.manifest, directory)
        scorer = PolicyPrefill(
            settings.model_path, dtype="float32", temperature=1.0, micro_batch_tokens=4096, device="cpu"
        )
        topics = RecordedTopics.copied(run.broker, run_topic_names(run.topics))
        yield Bench(run, settings, scorer, topics, directory)


def of_two_workers(sample: Sample) -> Sample:
    """Every second group is another worker's."""
    return replace(sample, worker_id=other_worker) if sample.group_id % 2 else sample


def named(outcome: VerifyOutcome) -> list[tuple[int, str, set[int]]]:
    return [(found.version, found.worker_id, set(found.fits)) for found in outcome.report.findings]


def test_all_trained_samples_of_the_archive_have_the_log_probabilities_of_their_weights(
    tmp_path: Path,
) -> None:
    report = tmp_path / "verify.json"
    words = ["--archive", str(recorded / "run.zip"), "--set", f"model.path={recorded / 'model'}"]
    ended = CliRunner().invoke(
        verify, [*words, "--require-all", "--json", str(report)], standalone_mode=False
    )
    assert ended.exception is None, ended.output
    assert ended.return_value == 0, ended.output
    assert "32 of 32 chosen sample(s) read" in ended.output
    assert ended.output.endswith("verify: nothing is off\n")
    told = json.loads(report.read_text())
    assert told["is_clean"]
    assert {group["version"] for group in told["groups"]} <= {0, 1, 2, 3}
    assert max(group["largest"] for group in told["groups"]) < 1e-4


def test_what_is_verified_can_be_chosen(bench: Bench) -> None:
    assert bench.verified(step=2).num_samples == 8
    assert bench.verified(with_untrained=True).num_samples == 40
    assert 0 < bench.verified(share=0.5, seed=3).num_samples < 32


def test_nothing_is_left_in_the_directory_for_downloads(bench: Bench) -> None:
    bench.verified()
    assert list(bench.directory.iterdir()) == []


def test_a_worker_that_goes_on_with_old_weights_is_named(bench: Bench) -> None:
    """What it makes under version 0 it labels version 1, so the ledger and the audit have nothing to say."""

    def stuck(sample: Sample) -> Sample:
        sample = of_two_workers(sample)
        if sample.worker_id != other_worker or sample.segments[0].version != 0:
            return sample
        return relabelled(sample, {0: (1, bench.sha256(1))})

    outcome = bench.verified(stuck)
    assert named(outcome) == [(1, other_worker, {0})], list(outcome.lines())
    assert outcome.exit_status == 1


def test_the_audit_does_not_see_what_verify_sees(bench: Bench) -> None:
    def altered(sample: Sample) -> Sample:
        return replace(sample, behaviour_logprobs=float32_array(sample.behaviour_logprobs - 0.02))

    assert audit_run(
        with_samples(bench.topics, bench.run.topics, altered), bench.run.topics, settles_within_seconds=0.0
    ).is_clean
    assert bench.verified(altered).exit_status == 1


def test_two_versions_whose_names_are_swapped_are_both_named(bench: Bench) -> None:
    swapped = {1: (2, bench.sha256(2)), 2: (1, bench.sha256(1))}
    outcome = bench.verified(lambda sample: relabelled(sample, swapped))
    found = {(version, fit) for version, _, fits in named(outcome) for fit in fits}
    assert found == {(1, 2), (2, 1)}, list(outcome.lines())


@pytest.mark.parametrize("by", [-0.02, 0.02])
def test_log_probabilities_altered_in_one_sample_are_named_with_it(bench: Bench, by: float) -> None:
    chosen = next(sample for sample in bench.samples() if len(sample.segments) == 1 and sample.num_tokens > 1)

    def altered(sample: Sample) -> Sample:
        if sample.sample_id != chosen.sample_id:
            return of_two_workers(sample)
        return replace(
            of_two_workers(sample), behaviour_logprobs=float32_array(sample.behaviour_logprobs + by)
        )

    outcome = bench.verified(altered, with_untrained=True)
    (finding,) = outcome.report.findings
    assert (finding.version, finding.worker_id) == (
        chosen.segments[0].version,
        of_two_workers(chosen).worker_id,
    )
    assert list(finding.samples) == [chosen.sample_id]
    assert not finding.fits


def test_a_record_that_was_altered_after_its_verdict_is_off(bench: Bench) -> None:
    record = bench.topics.all(bench.run.topics.samples)[0]
    value = bytearray(record.value or b"")
    value[-1] ^= 1
    run = replace(bench.run, broker=bench.topics.with_value(record, bytes(value)))
    request = VerifyRequest(selection=Selection(with_untrained=True))
    outcome = verify_recorded(run, bench.settings, bench.scorer, request, bench.directory)
    (altered,) = outcome.report.altered
    assert (altered.partition, altered.offset) == (record.partition, record.offset)
    assert f"OFF {altered}" in list(outcome.lines())
    assert "`rollog audit` says more" in altered.reason
    assert outcome.exit_status == 1
    assert not outcome.as_json()["is_clean"]


@pytest.mark.parametrize("require_all", [False, True])
def test_samples_that_retention_took_count_as_not_checked(bench: Bench, *, require_all: bool) -> None:
    place = min(place for place in bench.topics.records if place.topic == bench.run.topics.samples)
    run = replace(bench.run, broker=bench.topics.truncated(place, 5))
    request = VerifyRequest(selection=Selection(with_untrained=True), require_all=require_all)
    outcome = verify_recorded(run, bench.settings, bench.scorer, request, bench.directory)
    assert sorted(each.offset for each in outcome.report.unread) == [0, 1, 2, 3, 4]
    assert outcome.num_samples == 35
    assert outcome.exit_status == int(require_all)
    assert list(outcome.lines())[-1] == "verify: nothing is off; not checked: 5 sample(s) and 0 segment(s)"


def test_in_bfloat16_the_noise_is_measured_with_the_runs_own_weights(bench: Bench) -> None:
    """The samples are float32's here; a scorer in bfloat16 has noise that passes, and other weights do not."""
    settings = replace(bench.settings, model=bench.settings.model.model_copy(update={"dtype": "bfloat16"}))
    scorer = PolicyPrefill(
        settings.model_path, dtype="bfloat16", temperature=1.0, micro_batch_tokens=4096, device="cpu"
    )
    outcome = replace(bench, settings=settings, scorer=scorer).verified()
    assert outcome.exit_status == 0, list(outcome.lines())
    assert outcome.report.tolerances is not None
    assert outcome.report.tolerances.token > 1e-3


def test_sequences_computed_together_have_the_log_probabilities_that_they_have_alone(bench: Bench) -> None:
    pieces = [piece for sample in bench.samples() for piece in pieces_of(sample, 0, 0)]
    together = bench.scorer.logprobs(pieces)
    for piece, logprobs in zip(pieces, together, strict=True):
        (alone,) = bench.scorer.logprobs([piece])
        assert abs(alone - logprobs).max() < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_vllm_says_the_same_as_the_trainers_policy(tmp_path: Path) -> None:
    """On a model whose heads vLLM can compute on a CPU, which the archive's are too small for."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    versions = save_versions(tmp_path, tied=True)
    (tmp_path / "model.safetensors").symlink_to(versions[0])
    policy = PolicyPrefill(
        str(tmp_path), dtype="float32", temperature=1.0, micro_batch_tokens=4096, device="cpu"
    )
    drawn = np.random.default_rng(0)
    pieces = [
        replace(piece, token_ids=int32_array(drawn.integers(2, vocabulary_size, len(piece.token_ids))))
        for number in range(6)
        for piece in pieces_of(a_sample(number), 0, number)
    ]
    model = ModelConfig(path=str(tmp_path), max_context_tokens=max_context_tokens - 1)
    with vllm_prefill(model, RolloutConfig()) as scorer:
        for path in versions.values():
            scorer.load(path)
            policy.load(path)
            for mine, other in zip(policy.logprobs(pieces), scorer.logprobs(pieces), strict=True):
                np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4)


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="cannot be loaded as a causal language model"):
        verify_run(asked("model.path=/nowhere"), VerifyRequest(selection=Selection()))


def test_a_step_that_is_not_there_is_named(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="--step 99"):
        bench.verified(step=99)


def test_noise_of_bfloat16_is_some_and_not_much(bench: Bench) -> None:
    pieces = [piece for sample in bench.samples() for piece in pieces_of(sample, 0, 0)]
    noise = bfloat16_noise(
        bench.settings.model_path,
        recorded / "model" / "model.safetensors",
        pieces,
        temperature=1.0,
        max_tokens=100,
    )
    assert 1e-5 < noise < 0.1
