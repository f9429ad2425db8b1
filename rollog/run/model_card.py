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


_served_without_text = (
    "`AutoTokenizer` must not be used: it rebuilds the tokenizer of this architecture and splits text otherwise than "
    "the run did. vLLM loads tokenizers in this way, too: give it token ids (`prompt_token_ids`)."
)


def model_card(facts: ModelFacts, *, is_tokenizer_misread: bool = False) -> str:
    """README.md of the model's directory; `is_tokenizer_misread` where AutoTokenizer does not load what the run had."""
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
        *_use("PreTrainedTokenizerFast" if is_tokenizer_misread else "AutoTokenizer"),
        "",
        _served_without_text if is_tokenizer_misread else "`vllm serve DIRECTORY` serves it.",
        "",
        "## Check",
        "",
        f"`rollog audit {facts.run} --head HEAD` checks the whole run, and that it still has a head that was written",
        f"down, such as the one above; `rollog lineage {facts.run} --version {facts.version}` names what this version",
        f"was made of; `rollog replay {facts.run}` trains it again and compares the sha256.",
        "",
        *(_difference() if not facts.is_closed else ()),
    ]
    return "\n".join(lines)


def _use(tokenizer: str) -> tuple[str, ...]:
    return (
        "```python",
        f"from transformers import AutoModelForCausalLM, {tokenizer}",
        "",
        'model = AutoModelForCausalLM.from_pretrained("DIRECTORY")',
        f'tokenizer = {tokenizer}.from_pretrained("DIRECTORY")',
        "```",
    )


def _difference() -> tuple[str, ...]:
    return ("The run was not over when this was exported.", "")


def _cell(value: str) -> str:
    """A value of the run within a table: nothing of it ends the cell, the row or the code."""
    return "".join(letter if letter.isprintable() else " " for letter in value).replace("|", "\\|")
