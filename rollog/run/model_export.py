"""A version of a recorded run as a Hugging Face model directory, its bytes checked against the ledger.

Consumes steps, weights, evaluations and the first tasks of the run, its weights store, and configuration and tokenizer
of the model it began with. Produces one directory, under its final name only when it is whole.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from consumers.evaluation import EvaluationTally
from consumers.ledger import StoredLedger, folded
from consumers.named_weights import read_named_weights
from consumers.readable import read_readable, read_tasks
from producers.rollout.prompts import reward_prompt
from rollog.kernel.errors import ConfigError, DataError, LedgerError
from rollog.run.ledger_weights import LedgerWeights
from rollog.run.model_card import ModelFacts, example_lines, model_card
from rollog.run.model_directory import (
    place_tokenizer,
    require_loadable,
    write_configuration,
    write_generation_defaults,
    write_json,
    write_weights,
)
from rollog.run.role_settings import trainer_settings
from schemas import Disposition, Genesis, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.rules.ledger_state import LedgerState
    from rollog.run.recorded_run import RecordedRun
    from rollog.settings.settings import Settings
    from schemas import Prompt

_num_compared_texts = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """What was written. `tokenizer_folder` is the folder inside it to load the tokenizer from, None for itself."""

    directory: Path
    facts: ModelFacts
    num_tensors: int
    tokenizer_folder: str | None


def export_model(
    run: RecordedRun, home: Path, directory: Path, *, version: int | None = None
) -> ExportedModel:
    """Write `version`, the newest without one, to `directory`, which is not there yet or is empty.

    Raises ConfigError for the directory or a version that the ledger has not; WeightsError for a file that is gone
    or is not the ledger's; DataError for a tokenizer that is missing and for weights of another model.
    """
    entries = StoredLedger(run.broker, run.topics)
    ledger, genesis = folded(entries), _genesis(entries)
    chosen = _version(ledger, version)
    settings = trainer_settings(run.settings, run.manifest, home)
    model = settings.model_path
    tokenizer = run.settings.model.tokenizer or model
    facts = _facts(run, ledger, genesis, chosen, model)
    named = read_named_weights(run.broker, run.topics, ledger.weights)
    with _whole_directory(directory) as partial, TemporaryDirectory(prefix="rollog-export-") as downloads:
        with LedgerWeights(named, run.store, Path(downloads)).file(chosen) as weights:
            write_configuration(partial, genesis.model_config_json, genesis.dtype)
            require_loadable(partial, weights)
            num_tensors = write_weights(partial, weights)
        prompts = _some_prompts(run.broker, run.topics.tasks)
        texts = [prompt.text or prompt.messages_json or "" for prompt in prompts] or _some_responses(run)
        tokenizer_folder = place_tokenizer(partial, tokenizer, texts)
        write_generation_defaults(partial, model, settings.sampling_temperature)
        card = model_card(facts, tokenizer_folder=tokenizer_folder, example=_example(run.settings, prompts))
        (partial / "README.md").write_text(card, encoding="utf-8")
        write_json(partial / "rollog.json", facts.as_json())
    return ExportedModel(
        directory=directory, facts=facts, num_tensors=num_tensors, tokenizer_folder=tokenizer_folder
    )


def _genesis(entries: StoredLedger) -> Genesis:
    first = entries.first()
    if first is None or not isinstance(first.record.body, Genesis):
        raise LedgerError("the ledger has not begun: there is no version to export yet; wait for version 0")
    return first.record.body


def _version(ledger: LedgerState, asked: int | None) -> int:
    if asked is None:
        return ledger.version
    if asked not in ledger.weights:
        raise ConfigError(f"--version {asked}: the ledger has versions 0 to {ledger.version}")
    return asked


def _facts(run: RecordedRun, ledger: LedgerState, genesis: Genesis, version: int, model: str) -> ModelFacts:
    return ModelFacts(
        run=run.topics.run,
        version=version,
        newest_version=ledger.version,
        weights_sha256=ledger.weights[version],
        ledger_head=ledger.head.hex(),
        ledger_sequence=ledger.next_sequence - 1,
        is_closed=ledger.is_closed,
        base_model=_name(model),
        data=_data_of(run.settings),
        algorithm=run.settings.algorithm.type,
        dtype=genesis.dtype,
        samples_trained=ledger.num_by_disposition[Disposition.TRAINED],
        held_out=_held_out(run, version),
        versions=dict(genesis.versions),
    )


def _name(place: str) -> str:
    """A model or dataset by its name: a directory of this machine says nothing elsewhere."""
    path = Path(place).expanduser()
    return path.name if path.is_absolute() or path.exists() else place


def _held_out(run: RecordedRun, version: int) -> dict[str, float]:
    tally = EvaluationTally(run.settings.environment.seats)
    for _, sample in read_readable(
        run.broker, run.topics.evaluations, Sample, client_id="export-evaluations"
    ):
        tally.add(sample)
    return {name: score.mean_reward for (name, at), score in tally.scores().items() if at == version}


def _some_prompts(broker: Broker, topic: str) -> list[Prompt]:
    """Those that say something: an episode's text comes from its environment."""
    tasks = islice(read_tasks(broker, topic, client_id="export-prompts"), _num_compared_texts)
    return [task.prompt for _, task in tasks if task.prompt.text != ""]


def _some_responses(run: RecordedRun) -> list[str]:
    samples = read_readable(run.broker, run.topics.samples, Sample, client_id="export-responses")
    texts = (sample.response_text for _, sample in samples if sample.payload is None)
    return list(islice(texts, _num_compared_texts))


def _data_of(settings: Settings) -> str:
    if settings.environment.name is not None:
        return f"episodes of {settings.environment.name}"
    return _name(settings.data.train) if settings.data.train else "the demo's prompts"


def _example(settings: Settings, prompts: Sequence[Prompt]) -> Sequence[str]:
    """Lines of Python for the card; none where a prompt of the run cannot be read."""
    try:
        asked = [reward_prompt(prompt) for prompt in prompts]
    except DataError:
        return ()
    return example_lines(asked, settings.sampling.max_tokens, settings.model.chat_template_kwargs or {})


@contextmanager
def _whole_directory(directory: Path) -> Iterator[Path]:
    """A directory beside it, which gets its name when the block is done. Raises ConfigError."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"--model {directory} exists already; name another directory, or empty it")
    partial = directory.with_name(f"{directory.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.mkdir(parents=True)
        yield partial
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    except OSError as error:
        raise ConfigError(
            f"--model {directory} cannot be written ({error.strerror or error}); name a directory with room"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
