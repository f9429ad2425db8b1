"""Record of the `steps` topic (the ledger): what was consumed, in order, and what became of every sample.

Each record holds the sha256 of the value before it, so the ledger is one chain from genesis to close.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Disposition(StrEnum):
    """The one final verdict on a sample, in the order in which the rules are tried."""

    DEAD = "dead"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    REDUNDANT = "redundant"
    STALE = "stale"
    UNREWARDED = "unrewarded"
    INCOMPLETE = "incomplete"
    FILTERED = "filtered"
    TRAINED = "trained"


class LedgerKind(StrEnum):
    """What a ledger record does."""

    GENESIS = "genesis"
    STEP = "step"
    VERDICTS = "verdicts"
    AMEND = "amend"
    REBASE = "rebase"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReference:
    """The record of `rewards` that gave a sample its reward; `digest` has 16 bytes, as that of a verdict."""

    offset: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A disposition of the record at (partition, offset) of `samples`.

    `digest` is the first 16 bytes of the sha256 of the record's value; `reason` refines the disposition
    (for example which filter). Undecodable records have group_id and replica -1 unless their header tells.
    `late_reward` names what gave the sample its reward, where the sample did not bring it.
    """

    partition: int
    offset: int
    sample_id: str
    digest: bytes
    group_id: int
    replica: int
    disposition: Disposition
    lag: int | None = None
    reason: str = ""
    late_reward: RewardReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGroup:
    """A group that ended, and how: trained, filtered, incomplete."""

    group_id: int
    outcome: Disposition
    protected_waits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """Everything a later reader needs to judge whether it can reproduce the run.

    `weights_identity` says what a sha256 of weights is of, from version 0 to the end of the run: `file`, one
    safetensors file, or `content`, the tensors (`rollog.kernel.versions.identity`).
    """

    manifest_json: str
    weights_sha256: str
    model_config_json: str
    versions: dict[str, str]
    machine: str
    world_size: int
    zero_stage: int
    dtype: str
    weights_identity: str = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Positions in the step's training order that one rank processed together."""

    minibatch: int
    rank: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Seconds of one training step by the trainer's monotonic clock.

    `publish_seconds` are those in which publishing held training up. What follows the record cannot stand in it:
    `commit_seconds` are those of the step before this one, and `checkpoint_seconds` those in which the checkpoint
    written since held training up.
    """

    wait_seconds: float = 0.0
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    commit_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step. The trained samples are the record's verdicts `trained`, in training order."""

    weights_sha256_before: str
    weights_sha256: str
    alpha: float
    revision: int
    seed: int
    plan: tuple[MicroBatch, ...]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    reward_mean: float
    num_groups: int
    num_samples: int
    num_tokens: int
    lags: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    timings: StepTimings = field(default_factory=StepTimings)
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend:
    """Settings changed on resume; later steps name `revision`."""

    revision: int
    changes_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase:
    """New weights under a new version after a redo that did not reproduce the published ones."""

    version_not_reproduced: int
    weights_sha256: str
    expected_sha256: str
    max_difference: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The end of the run: I1 is judged by these end offsets (one per samples partition)."""

    end_offsets: tuple[int, ...]
    reason: str


LedgerBody = Genesis | Step | Amend | Rebase | Close | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """One link of the chain.

    `version` is the policy version after this record, `alpha` the asynchronous ratio in force for the next
    step, `low_water_marks` the smallest offset without a disposition per samples partition. A `verdicts`
    record has no body. A record near the size limit is split into `num_parts` within one transaction.
    `rewards` was read up to `reward_position`; a new trainer reads it on from `reward_mark`.
    """

    kind: LedgerKind
    sequence: int
    version: int
    alpha: float
    previous_hash: bytes
    low_water_marks: tuple[int, ...]
    verdicts: tuple[Verdict, ...] = ()
    closed_groups: tuple[ClosedGroup, ...] = ()
    body: LedgerBody = None
    part: int = 0
    num_parts: int = 1
    reward_position: int = 0
    reward_mark: int = 0
