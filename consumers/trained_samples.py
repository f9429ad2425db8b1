"""The trained samples of a run as a dataset: one row per sample, in the order of training.

A sample of several sequences is one row, too, because its reward counts once: the columns `fork_...` have an entry per
further sequence, which begins with the first `fork_shared` ids of sequence `fork_parents` (0 is the sample's own), then
has its own context and tokens; `turn_...` have one per turn.

Consumes `steps`, `samples` (by reference, with the objects of large ones) and, for the texts of prompts, `tasks`.
Holds the samples of one step and the text of every prompt. Produces one file, under its final name only when it is
whole.
"""

from __future__ import annotations

import json
from itertools import chain, groupby
from typing import IO, TYPE_CHECKING, Any

from consumers.ledger import StoredLedger, folded
from consumers.readable import read_tasks
from consumers.references import read_referenced
from consumers.tables import arrow_schema, column_types, in_batches
from rollog.kernel.atomic_write import atomic_write
from rollog.kernel.errors import ConfigError
from rollog.kernel.payloads import PayloadStore
from schemas import Disposition, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from consumers.ledger import LedgerEntry
    from consumers.tables import Row
    from rollog.kernel.broker.ports import Broker, Consumer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore
    from schemas import Fork, Prompt, Sample, TurnSpan, Verdict

    Groups = Sequence[Sequence[Sample]]
    Advantages = Callable[[Groups, Mapping[str, object]], Sequence[Sequence[float | None]]]

sample_columns = column_types(
    whole="step version lag group_id replica attempt partition offset seed",
    real="advantage reward temperature",
    text="sample_id prompt_id worker_id reward_components finish_reason prompt_text prompt_messages response_text",
    wholes32="prompt_token_ids token_ids loss_mask",
    reals32="behaviour_logprobs",
    reals="turn_rewards",
    wholes="segment_versions segment_ends turn_sequences turn_starts turn_ends fork_parents fork_shared",
    texts="turn_finish_reasons turn_untrained fork_reasons",
    lists="fork_segment_versions fork_segment_ends",
    lists32="fork_contexts fork_token_ids fork_loss_masks",
    real_lists32="fork_behaviour_logprobs",
)


def trained_samples(
    broker: Broker, topics: RunTopics, store: WeightsStore, *, advantages: Advantages
) -> Iterator[Row]:
    """The rows; `advantages` gives those of a step's samples from its groups and the settings changed until then.

    Raises LedgerError for a broken chain, and for a sample that is gone or is not the one that was trained.
    """
    payloads = PayloadStore(store, topics)
    entries = StoredLedger(broker, topics)
    ledger = folded(entries)
    with broker.consumer(client_id="trained-samples") as consumer:
        prompts = _prompts(broker, topics)
        for entry in entries:
            if isinstance(entry.record.body, Step):
                yield from _rows(
                    entry,
                    consumer,
                    topics,
                    prompts,
                    payloads=payloads,
                    advantages=advantages,
                    changes=ledger.changed_settings(entry.record.body.revision),
                )


def write_samples(rows: Iterable[Row], path: Path) -> int:
    """Write rows to a .jsonl or .parquet file; returns how many. Raises ConfigError."""
    writers = {".jsonl": _write_jsonl, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ConfigError(f"--samples {path}: the name must end in .jsonl or .parquet")
    if path.suffix == ".parquet":
        _parquet()  # before anything is read
    with atomic_write(path) as file:
        return writers[path.suffix](rows, file)


def _rows(
    entry: LedgerEntry,
    consumer: Consumer,
    topics: RunTopics,
    prompts: dict[str, Prompt],
    *,
    payloads: PayloadStore,
    advantages: Advantages,
    changes: Mapping[str, object],
) -> Iterator[Row]:
    """The rows of one step."""
    record = entry.record
    trained = [verdict for verdict in record.verdicts if verdict.disposition is Disposition.TRAINED]
    samples = read_referenced(consumer, topics, trained, payloads)
    groups = [
        [samples[(verdict.partition, verdict.offset)] for verdict in members]
        for _, members in groupby(trained, key=lambda verdict: verdict.group_id)
    ]
    for verdict, sample, advantage in zip(
        trained,
        chain.from_iterable(groups),
        chain.from_iterable(advantages(groups, changes)),
        strict=True,
    ):
        yield {
            "step": record.version,
            "advantage": advantage,
            **_row(verdict, sample, prompts.get(sample.prompt_id)),
        }


def _row(verdict: Verdict, sample: Sample, prompt: Prompt | None) -> Row:
    return {
        "version": sample.first_version,
        "lag": verdict.lag,
        "sample_id": sample.sample_id,
        "prompt_id": sample.prompt_id,
        "group_id": sample.group_id,
        "replica": sample.replica,
        "attempt": sample.attempt,
        "worker_id": sample.worker_id,
        "partition": verdict.partition,
        "offset": verdict.offset,
        "reward": sample.reward,
        "reward_components": json.dumps(sample.reward_components, sort_keys=True),
        "turn_rewards": list(sample.turn_rewards),
        "finish_reason": None if sample.finish_reason is None else sample.finish_reason.value,
        "temperature": sample.temperature,
        "seed": sample.seed,
        "prompt_text": None if prompt is None else prompt.text,
        "prompt_messages": None if prompt is None else prompt.messages_json,
        "response_text": sample.response_text,
        "prompt_token_ids": sample.prompt_token_ids.tolist(),
        "token_ids": sample.token_ids.tolist(),
        "behaviour_logprobs": sample.behaviour_logprobs.tolist(),
        "loss_mask": sample.loss_mask.tolist(),
        "segment_versions": [segment.version for segment in sample.segments],
        "segment_ends": [segment.end for segment in sample.segments],
        **_turns(sample.turns),
        **_forks(sample.forks),
    }


def _turns(turns: Sequence[TurnSpan]) -> Row:
    return {
        "turn_sequences": [turn.sequence for turn in turns],
        "turn_starts": [turn.start for turn in turns],
        "turn_ends": [turn.end for turn in turns],
        "turn_finish_reasons": [turn.finish_reason.value for turn in turns],
        "turn_untrained": [turn.untrained for turn in turns],
    }


def _forks(forks: Sequence[Fork]) -> Row:
    return {
        "fork_parents": [fork.parent for fork in forks],
        "fork_shared": [fork.shared for fork in forks],
        "fork_contexts": [fork.context.tolist() for fork in forks],
        "fork_token_ids": [fork.token_ids.tolist() for fork in forks],
        "fork_behaviour_logprobs": [fork.behaviour_logprobs.tolist() for fork in forks],
        "fork_loss_masks": [fork.loss_mask.tolist() for fork in forks],
        "fork_segment_versions": [[segment.version for segment in fork.segments] for fork in forks],
        "fork_segment_ends": [[segment.end for segment in fork.segments] for fork in forks],
        "fork_reasons": [fork.reason for fork in forks],
    }


def _prompts(broker: Broker, topics: RunTopics) -> dict[str, Prompt]:
    """Every prompt that a task named."""
    found: dict[str, Prompt] = {}
    for _, task in read_tasks(broker, topics.tasks, client_id="trained-samples-prompts"):
        found.setdefault(task.prompt.prompt_id, task.prompt)
    return found


def _write_jsonl(rows: Iterable[Row], file: IO[bytes]) -> int:
    num_rows = 0
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        num_rows += 1
    return num_rows


def _write_parquet(rows: Iterable[Row], file: IO[bytes]) -> int:
    pyarrow, parquet = _parquet()
    schema = arrow_schema(sample_columns)
    num_rows = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in in_batches(rows):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            num_rows += len(batch)
    return num_rows


def _parquet() -> tuple[Any, Any]:
    """The library and its part for Parquet. Raises ConfigError where they are not installed."""
    try:
        import pyarrow  # noqa: ICN001, PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "writing Parquet needs pyarrow; install rollog[data], or name a .jsonl file"
        ) from error
    return pyarrow, parquet
