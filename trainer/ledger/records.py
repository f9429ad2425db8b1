"""Building ledger records: each follows the state that it is built on."""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

import rollog
from rollog.rules.alpha_control import TakenStep, alpha_of_step
from schemas import (
    Amend,
    Close,
    ClosedGroup,
    Genesis,
    LedgerKind,
    LedgerRecord,
    Rebase,
    Step,
    StepTimings,
    Verdict,
)
from trainer.step.off_policy import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.rules.headers import SampleHeader
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import FreshnessConfig
    from schemas import LedgerBody, MicroBatch, Sample
    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.engines.ports import EngineDescription
    from trainer.step.ports import StepResult

Judgement = tuple[tuple[Verdict, ...], tuple[ClosedGroup, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step that was computed and published, not yet committed."""

    batch: tuple[ReadyGroup, ...]
    samples: tuple[Sample, ...]
    plan: tuple[MicroBatch, ...]
    seed: int
    result: StepResult
    weights_sha256: str
    timings: StepTimings
    checkpoint: str | None


def genesis_record(
    description: EngineDescription,
    *,
    manifest_json: str,
    alpha: float,
    weights_sha256: str,
    weights_identity: str,
    num_partitions: int,
    versions: Mapping[str, str],
) -> LedgerRecord:
    """The first record: version 0 and everything a reader needs to judge whether the run can be reproduced."""
    return LedgerRecord(
        kind=LedgerKind.GENESIS,
        sequence=0,
        version=0,
        alpha=alpha,
        previous_hash=bytes(32),
        low_water_marks=(0,) * num_partitions,
        body=Genesis(
            manifest_json=manifest_json,
            weights_sha256=weights_sha256,
            model_config_json=description.model_config_json,
            versions=own_versions() | dict(description.versions) | dict(versions),
            machine=machine(description),
            world_size=description.world_size,
            zero_stage=description.zero_stage,
            dtype=description.dtype,
            weights_identity=weights_identity,
        ),
    )


def step_record(
    ledger: LedgerState,
    step: TrainedStep,
    judgement: Judgement,
    low_water_marks: tuple[int, ...],
    freshness: FreshnessConfig,
) -> LedgerRecord:
    """The record that makes the next version and decides the alpha of the step after it."""
    headers = [header for group in step.batch for header in group.members]
    lags = Counter(ledger.version - (header.first_version or 0) for header in headers)
    body = Step(
        weights_sha256_before=ledger.weights[ledger.version],
        weights_sha256=step.weights_sha256,
        alpha=ledger.alpha,
        revision=ledger.revision,
        seed=step.seed,
        plan=step.plan,
        losses=step.result.losses,
        gradient_norms=step.result.gradient_norms,
        learning_rates=step.result.learning_rates,
        reward_mean=fmean(header.reward or 0.0 for header in headers),
        num_groups=len(step.batch),
        num_samples=len(headers),
        num_tokens=sum(header.num_tokens for header in headers),
        lags={str(lag): count for lag, count in sorted(lags.items())},
        statistics=finite(
            dict(step.result.statistics)
            | sample_statistics(step.samples)
            | reward_by_lag(headers, ledger.version)
        ),
        timings=step.timings,
        checkpoint=step.checkpoint,
    )
    version = ledger.version + 1
    taken = (*ledger.taken_steps, TakenStep.recorded(version, body))
    return _following(
        ledger,
        LedgerKind.STEP,
        judgement,
        low_water_marks,
        body=body,
        version=version,
        alpha=alpha_of_step(version + 1, taken, freshness),
    )


def verdicts_record(
    ledger: LedgerState, judgement: Judgement, low_water_marks: tuple[int, ...]
) -> LedgerRecord:
    """Dispositions and closed groups without a step."""
    return _following(ledger, LedgerKind.VERDICTS, judgement, low_water_marks)


def amend_record(
    ledger: LedgerState, changes: Mapping[str, object], freshness: FreshnessConfig
) -> LedgerRecord:
    """Settings that change from here on, by dotted key; `freshness` is what decides alpha with them."""
    return _following(
        ledger,
        LedgerKind.AMEND,
        ((), ()),
        ledger.low_water_marks,
        body=Amend(
            revision=ledger.revision + 1, changes_json=json.dumps(changes, sort_keys=True, allow_nan=False)
        ),
        alpha=alpha_of_step(ledger.version + 1, ledger.taken_steps, freshness),
    )


def rebase_record(
    ledger: LedgerState, weights_sha256: str, max_difference: float, reason: str, freshness: FreshnessConfig
) -> LedgerRecord:
    """A new version, whose weights take over from those of the newest, which could not be reproduced."""
    version = ledger.version + 1
    return _following(
        ledger,
        LedgerKind.REBASE,
        ((), ()),
        ledger.low_water_marks,
        body=Rebase(
            version_not_reproduced=ledger.version,
            weights_sha256=weights_sha256,
            expected_sha256=ledger.weights[ledger.version],
            max_difference=max_difference,
            reason=reason,
        ),
        version=version,
        alpha=alpha_of_step(version + 1, ledger.taken_steps, freshness),
    )


def close_record(
    ledger: LedgerState, judgement: Judgement, end_offsets: tuple[int, ...], reason: str
) -> LedgerRecord:
    """The last record: everything below `end_offsets` has its disposition."""
    return _following(
        ledger,
        LedgerKind.CLOSE,
        judgement,
        end_offsets,
        body=Close(end_offsets=end_offsets, reason=reason),
    )


def sample_statistics(samples: Sequence[Sample]) -> dict[str, float]:
    """How long samples are and what they cost, and an estimate of the behaviour policy's entropy per token, in nats.

    `behaviour_entropy` is -mean(mu) over trained tokens. `context_per_trained_token` are the ids that the forward pass
    reads and that are not trained, per trained one: prompts, what environments answered, what forks share.
    """
    rows = [row for sample in samples for row in sample.rows()]
    logprobs = [float(row.behaviour_logprobs[row.loss_mask != 0].sum(dtype=np.float64)) for row in rows]
    num_trained = sum(int(np.count_nonzero(row.loss_mask)) for row in rows)
    num_read = sum(len(row.prompt_token_ids) + len(row.token_ids) for row in rows)
    return {
        "response_tokens_mean": fmean(sample.num_sampled_tokens for sample in samples),
        "behaviour_entropy": -sum(logprobs) / max(num_trained, 1),
        "sequences_per_sample": len(rows) / len(samples),
        "context_per_trained_token": (num_read - num_trained) / max(num_trained, 1),
    }


def reward_by_lag(headers: Sequence[SampleHeader], version: int) -> dict[str, float]:
    """The mean reward of the samples of each lag, as `reward_mean_lag_N`; `version` is the one the step began with."""
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for header in headers:
        rewards[version - (header.first_version or 0)].append(header.reward or 0.0)
    return {f"reward_mean_lag_{lag}": fmean(of_lag) for lag, of_lag in sorted(rewards.items())}


def own_versions() -> dict[str, str]:
    """Versions of what every engine runs on."""
    return {
        "rollog": rollog.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def machine(description: EngineDescription) -> str:
    """The machine type, as far as results depend on it."""
    return f"{platform.system()} {platform.machine()} {description.device}"


def _following(
    ledger: LedgerState,
    kind: LedgerKind,
    judgement: Judgement,
    low_water_marks: tuple[int, ...],
    *,
    body: LedgerBody = None,
    version: int | None = None,
    alpha: float | None = None,
) -> LedgerRecord:
    verdicts, closed_groups = judgement
    return LedgerRecord(
        kind=kind,
        sequence=ledger.next_sequence,
        version=ledger.version if version is None else version,
        alpha=ledger.alpha if alpha is None else alpha,
        previous_hash=ledger.head,
        low_water_marks=low_water_marks,
        verdicts=verdicts,
        closed_groups=closed_groups,
        body=body,
        reward_position=ledger.reward_position,
        reward_mark=ledger.reward_mark,
    )
