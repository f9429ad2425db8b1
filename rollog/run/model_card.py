"""The model card of an exported version: what it is, where it comes from, and how to check that. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of an exported version. `base_model` and `data` are names, without places of a machine.

    `ledger_head` is the sha256 of the newest ledger record when it was exported, number `ledger_sequence`.
    `held_out` maps evaluations to the mean reward of this version.
    """

    run: str
    version: int
    newest_version: int
    weights_sha256: str
    ledger_head: str
    ledger_sequence: int
    is_closed: bool
    base_model: str
    data: str
    algorithm: str
    dtype: str
    samples_trained: int
    held_out: Mapping[str, float]
    versions: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """For rollog.json."""
        return asdict(self)


_tokenizer_apart = (
    "The tokenizer has a folder of its own, without a config.json: beside one, `AutoTokenizer` rebuilds the tokenizer "
    "of this architecture and splits text otherwise than the run did."
)


def serving_command(directory: str, tokenizer_folder: str | None) -> str:
    """How vLLM serves it."""
    place = "" if tokenizer_folder is None else f" --tokenizer {directory}/{tokenizer_folder}"
    return f"vllm serve {directory}{place}"


def model_card(facts: ModelFacts, *, tokenizer_folder: str | None = None) -> str:
    """README.md of the model's directory; `tokenizer_folder` where the tokenizer is to be loaded from one inside it."""
    rows = [
        ("run", facts.run),
        ("version", f"{facts.version} of {facts.newest_version}"),
        ("sha256 of its weights file", f"`{facts.weights_sha256}`"),
        ("ledger head at export", f"`{facts.ledger_head}` (record {facts.ledger_sequence})"),
        ("base model", facts.base_model),
        ("data", facts.data),
        ("algorithm", facts.algorithm),
        ("type of the weights", facts.dtype),
        ("samples trained in the run", str(facts.samples_trained)),
        *((f"held-out mean reward, {name}", f"{value:.3f}") for name, value in facts.held_out.items()),
        *((name, version) for name, version in facts.versions.items()),
    ]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [rollog, reinforcement-learning]",
        "---",
        "",
        f"# {facts.run}, version {facts.version}",
        "",
        "Post-trained with rollog. The ledger of the run says which samples each version was trained on.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {_cell(value)} |" for name, value in rows),
        "",
        "## Use",
        "",
        *_use(tokenizer_folder),
        "",
        f"`{serving_command('DIRECTORY', tokenizer_folder)}` serves it.",
        "",
        *((_tokenizer_apart, "") if tokenizer_folder is not None else ()),
        "## Check",
        "",
        f"`rollog audit {facts.run} --head HEAD` checks the whole run, and that it still has a head that was written",
        f"down, such as the one above; `rollog lineage {facts.run} --version {facts.version}` names what this version",
        f"was made of; `rollog replay {facts.run}` trains it again and compares the sha256.",
        "",
        *(_difference() if not facts.is_closed else ()),
    ]
    return "\n".join(lines)


def _use(tokenizer_folder: str | None) -> tuple[str, ...]:
    tokenizer = "DIRECTORY" if tokenizer_folder is None else f"DIRECTORY/{tokenizer_folder}"
    return (
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("DIRECTORY")',
        f'tokenizer = AutoTokenizer.from_pretrained("{tokenizer}")',
        "```",
    )


def _difference() -> tuple[str, ...]:
    return ("The run was not over when this was exported.", "")


def _cell(value: str) -> str:
    """A value of the run within a table: nothing of it ends the cell, the row or the code."""
    return "".join(letter if letter.isprintable() else " " for letter in value).replace("|", "\\|")
