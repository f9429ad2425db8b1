"""Prompts from a file or a named dataset, and the seeded order in which groups use them.

A dataset line that cannot be used is an error that names the file and the line: nothing is skipped.
"""

from __future__ import annotations

import difflib
import json
import random
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import ConfigError, DataError
from schemas import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

largest_prompt_bytes = 900_000
file_suffixes = (".jsonl", ".parquet")


@dataclass(slots=True)
class PromptOrder:
    """Which prompt group n gets: each epoch passes once over all prompts, in its own seeded order."""

    num_prompts: int
    seed: int
    shuffle: bool = True
    num_epochs: int | None = None
    _epoch: int = -1
    _order: list[int] = field(default_factory=list)

    @property
    def num_groups(self) -> int | None:
        """How many groups there are in all; None: without end."""
        return None if self.num_epochs is None else self.num_epochs * self.num_prompts

    def prompt_index(self, group_id: int) -> int:
        """Position in the dataset of the prompt of this group."""
        epoch, position = divmod(group_id, self.num_prompts)
        if not self.shuffle:
            return position
        if epoch != self._epoch:
            self._order = list(range(self.num_prompts))
            random.Random(f"{self.seed}/{epoch}").shuffle(self._order)  # noqa: S311 - an order, not a secret
            self._epoch = epoch
        return self._order[position]


def load_prompts(
    source: str,
    *,
    split: str,
    prompt_field: str,
    id_field: str | None,
    system_prompt: str | None = None,
    most_rows: int | None = None,
) -> list[Prompt]:
    """The prompts of a JSONL or Parquet file, or of a dataset known to the `datasets` library by name.

    All of them, or those of the first `most_rows` rows. With `system_prompt` each is a chat that begins with it, unless
    it has a system message of its own. Raises DataError naming file, line and field.
    """
    rows = _rows_of_file(Path(source)) if source.endswith(file_suffixes) else _rows_of_name(source, split)
    prompts = [
        _prompt(location, _with_system(row, prompt_field, system_prompt), prompt_field, id_field)
        for location, row in islice(rows, most_rows)
    ]
    if not prompts:
        raise DataError(f"{source}: no prompts in it; give a file with at least one line")
    _check_unique(source, prompts)
    return prompts


def _rows_of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; correct data.train or data.held_out")
    if path.suffix == ".parquet":
        yield from _rows_of_parquet(path)
        return
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line_number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}, line {line_number}", _json_object(f"{path}, line {line_number}", line)


def _json_object(location: str, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{location}: not JSON ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise DataError(f"{location}: {type(row).__name__} instead of a JSON object with the prompt's fields")
    return row


def _rows_of_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow; install rollog[data]") from error
    try:
        batches = parquet.ParquetFile(path).iter_batches()
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for row_number, row in enumerate(rows, start=1):
            yield f"{path}, row {row_number}", row
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error


def _rows_of_name(name: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if Path(name).exists():
        raise DataError(f"{name}: unknown kind of file; use one that ends in {' or '.join(file_suffixes)}")
    try:
        import datasets  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            f"{name}: loading a dataset by name needs `datasets`; install rollog[data]"
        ) from error
    try:
        rows = datasets.load_dataset(name, split=split)
    except Exception as error:  # the library raises errors of many libraries
        raise DataError(
            f"{name}, split {split}: the datasets library cannot load it ({error}); check the name and the split, "
            f"or give a file ending in {' or '.join(file_suffixes)}"
        ) from error
    for row_number, row in enumerate(rows, start=1):
        yield f"{name}[{split}], row {row_number}", row


def _with_system(row: Mapping[str, Any], prompt_field: str, system_prompt: str | None) -> Mapping[str, Any]:
    """The row with the system message before its prompt; a prompt of another kind is refused by whoever reads it."""
    prompt = row.get(prompt_field)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system_prompt is None or not isinstance(messages, list):
        return row
    if any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        return row
    return {**row, prompt_field: [{"role": "system", "content": system_prompt}, *messages]}


def _prompt(location: str, row: Mapping[str, Any], prompt_field: str, id_field: str | None) -> Prompt:
    if prompt_field not in row:
        raise DataError(f"{location}: {_no_field('data.prompt_field', prompt_field, row)}")
    if id_field is not None and id_field not in row:
        raise DataError(f"{location}: {_no_field('data.id_field', id_field, row)}")
    prompt = row[prompt_field]
    prompt_id = str(row[id_field]) if id_field is not None else location.rsplit(" ", 1)[-1]
    rest = {name: value for name, value in row.items() if name != prompt_field}
    try:
        inputs = json.dumps(rest)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{location}: its fields cannot be handed to the reward function as JSON ({error})"
        ) from error
    size = len(inputs) + len(json.dumps(prompt))
    if size > largest_prompt_bytes:
        raise DataError(
            f"{location}: {size} bytes of JSON, a task takes {largest_prompt_bytes}; shorten the row"
        )
    if isinstance(prompt, str):
        return Prompt(prompt_id=prompt_id, text=prompt, reward_inputs_json=inputs)
    _check_messages(location, prompt_field, prompt)
    return Prompt(prompt_id=prompt_id, messages_json=json.dumps(prompt), reward_inputs_json=inputs)


def _no_field(key: str, name: str, row: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, row, n=1)
    remedy = f"{key} = {name!r}: did you mean {close[0]!r}?" if close else f"set {key}"
    return f"no field {name!r}, only {sorted(row)}; {remedy}"


def _check_messages(location: str, prompt_field: str, messages: object) -> None:
    well_formed = (
        isinstance(messages, list)
        and messages
        and all(
            isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
            for message in messages
        )
    )
    if not well_formed:
        raise DataError(
            f'{location}: field {prompt_field!r} is neither text nor a list of {{"role", "content"}} messages'
        )


def _check_unique(source: str, prompts: list[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise DataError(
                f"{source}: prompt id {prompt.prompt_id!r} occurs twice; choose another data.id_field"
            )
        seen.add(prompt.prompt_id)
