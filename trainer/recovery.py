"""How a trainer finds its place again: ledger, checkpoint, redo.

Consumes `steps`, `weights` and `samples` (by reference) and the newest complete checkpoint; produces an engine and a
ledger state that stand at the last committed version. Every redone step must give the weights that were published
for it, bit for bit; otherwise recovery stops and says so. On a crash it is simply done again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from consumers.ledger import LedgerEntry, read_ledger
from consumers.references import read_referenced
from rollog.broker.reading import read_to_end
from rollog.errors import EngineError, LedgerError
from rollog.logs import get_logger
from rollog.rules.ledger_state import LedgerState
from schemas import Disposition, Genesis, Step, WeightVersion
from schemas.codec import decode_as
from trainer.ledger_records import machine
from trainer.training import training_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rollog.broker.ports import Broker, Consumer
    from rollog.broker.topics import RunTopics
    from rollog.weights import WeightsStore
    from trainer.checkpoints import Checkpoint, CheckpointStore
    from trainer.config import AlgorithmConfig
    from trainer.engines.ports import TrainingBatch, TrainingEngine

log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The ledger as read: its fold, and the steps that recovery may have to redo."""

    state: LedgerState
    genesis: Genesis | None
    steps: dict[int, LedgerEntry]


def read_history(broker: Broker, topics: RunTopics) -> History:
    """Read the ledger to its end. Raises LedgerError where its chain is broken."""
    state = LedgerState()
    genesis: Genesis | None = None
    steps: dict[int, LedgerEntry] = {}
    for entry in read_ledger(broker, topics):
        state.apply(entry.record, entry.digest)
        match entry.record.body:
            case Genesis() as body:
                genesis = body
            case Step():
                steps[entry.record.version] = entry
    return History(state=state, genesis=genesis, steps=steps)


def restore_engine(
    engine: TrainingEngine,
    history: History,
    *,
    model_path: str,
    broker: Broker,
    topics: RunTopics,
    store: WeightsStore,
    downloads: Path,
    checkpoints: CheckpointStore,
    algorithm: AlgorithmConfig,
    temperature: float,
) -> Checkpoint | None:
    """Bring `engine` to the last committed version; returns the checkpoint it started from, None for version 0.

    Raises:
        LedgerError: a checkpoint is ahead of the ledger or of another history; a referenced sample is gone.
        EngineError: a redone step gives other weights than the published ones.
    """
    checkpoint = usable_checkpoint(checkpoints, history.state)
    notice = initial_weights(broker, topics, history.state)
    engine.start(model_path, store.fetch(notice, downloads))
    if checkpoint is not None:
        engine.load_checkpoint(checkpoint.directory)
        _check_weights(engine, history, checkpoint.version)
    first = 1 if checkpoint is None else checkpoint.version + 1
    log.info("recovering", version=history.state.version, redo_from=first - 1)
    with broker.consumer(client_id="trainer-redo") as consumer:
        for version in range(first, history.state.version + 1):
            batch = recorded_batch(history.steps[version], consumer, topics.samples, algorithm, temperature)
            engine.train_step(batch)
            _check_weights(engine, history, version)
    return checkpoint


def usable_checkpoint(checkpoints: CheckpointStore, ledger: LedgerState) -> Checkpoint | None:
    """The newest complete and undamaged checkpoint of the ledger's own history. Raises LedgerError."""
    for checkpoint in checkpoints.complete():
        if checkpoint.version > ledger.version:
            raise LedgerError(
                f"checkpoint {checkpoint.directory} is ahead of the ledger, which ends at version {ledger.version}: "
                "the ledger lost records or belongs to another run; restore the topic, or remove the checkpoint"
            )
        if checkpoint.weights_sha256 != ledger.weights[checkpoint.version]:
            raise LedgerError(
                f"checkpoint {checkpoint.directory} holds weights {checkpoint.weights_sha256[:16]}, the ledger names "
                f"{ledger.weights[checkpoint.version][:16]} for version {checkpoint.version}: it belongs to another "
                "run; remove it"
            )
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint
        log.warning("checkpoint damaged", checkpoint=checkpoint.name, damage=damage)
    return None


def initial_weights(broker: Broker, topics: RunTopics, ledger: LedgerState) -> WeightVersion:
    """The committed notice of version 0. Raises LedgerError when it is missing."""
    with broker.consumer(client_id="trainer-weights") as consumer:
        for record in read_to_end(consumer, topics.weights, 0):
            notice = decode_as(WeightVersion, record.value or b"")
            if notice.version == 0 and notice.sha256 == ledger.weights[0]:
                return notice
    raise LedgerError(
        f"{topics.weights} holds no notice of version 0 with sha256 {ledger.weights[0]}; restore the topic"
    )


def recorded_batch(
    entry: LedgerEntry, consumer: Consumer, samples_topic: str, algorithm: AlgorithmConfig, temperature: float
) -> TrainingBatch:
    """What one recorded step trained, read again from `samples` by its references."""
    body = entry.record.body
    assert isinstance(body, Step)
    trained = [verdict for verdict in entry.record.verdicts if verdict.disposition is Disposition.TRAINED]
    samples = read_referenced(consumer, samples_topic, trained)
    groups = [
        [samples[(verdict.partition, verdict.offset)] for verdict in members]
        for _, members in groupby(trained, key=lambda verdict: verdict.group_id)
    ]
    return training_batch(groups, body.plan, algorithm, temperature)


def _check_weights(engine: TrainingEngine, history: History, version: int) -> None:
    expected = history.state.weights[version]
    sha256 = hashlib.sha256(engine.export_weights()).hexdigest()
    if sha256 == expected:
        return
    here = engine.describe()
    then = history.genesis
    assert then is not None
    raise EngineError(
        f"redoing the step of version {version} gives weights {sha256[:16]}, published were {expected[:16]}; the run "
        f"began on {then.machine} with {then.world_size} rank(s), ZeRO stage {then.zero_stage}, {then.dtype}, "
        f"{_named(then.versions, here.versions)}, this is {machine(here)} with {here.world_size} rank(s), "
        f"ZeRO stage {here.zero_stage}, {here.dtype}, {_named(here.versions, here.versions)}: "
        "resume on the same machine type and versions"
    )


def _named(versions: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {versions.get(name, 'unknown')}" for name in sorted(names))
