"""Rows with typed columns in the forms that others read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consumers.tables import Table, column_types, imported, in_batches
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.tables import Row

columns = column_types(whole="step lag", real="reward", text="name", wholes32="tokens", reals32="logprobs")


def rows(count: int) -> Iterator[Row]:
    for step in range(count):
        yield {
            "step": step,
            "lag": None,
            "reward": step / 2,
            "name": f"row {step}",
            "tokens": [step] * step,
            "logprobs": [-0.5] * step,
        }


def test_every_form_holds_the_same_rows_and_reads_anew() -> None:
    table = Table(columns, lambda: rows(5))
    plain = list(rows(5))
    assert list(table) == plain
    assert table.to_arrow().to_pylist() == plain
    assert table.to_pandas()["reward"].tolist() == [row["reward"] for row in plain]
    dataset = table.to_dataset()
    assert dataset[4] == plain[4]


def test_a_column_that_is_null_throughout_keeps_its_type() -> None:
    schema = Table(columns, lambda: rows(1)).to_arrow().schema
    assert {name: str(schema.field(name).type) for name in ("lag", "tokens", "logprobs", "name")} == {
        "lag": "int64",
        "tokens": "list<item: int32>",
        "logprobs": "list<item: float>",
        "name": "string",
    }


def test_a_table_without_rows_has_its_columns() -> None:
    arrow = Table(columns, lambda: rows(0)).to_arrow()
    assert (arrow.num_rows, arrow.column_names) == (0, list(columns))


def test_batches_are_read_as_they_are_asked_for() -> None:
    read: list[int] = []

    def counted() -> Iterator[Row]:
        for row in rows(7):
            read.append(row["step"])
            yield row

    batches = Table(columns, counted).batches(num_rows=3)
    assert next(batches).num_rows == 3
    assert read == [0, 1, 2]
    assert [batch.num_rows for batch in batches] == [3, 1]


def test_a_batch_without_rows_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="num_rows = 0"):
        list(in_batches([], 0))


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"need no_such_library.*rollog\[data\]"):
        imported("no_such_library", "tables")


def test_lists_of_lists_have_a_type_of_their_own_also_where_all_are_empty() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = column_types(lists32="fork_token_ids", texts="fork_reasons")
    rows = Table(columns, lambda: iter([{"fork_token_ids": [], "fork_reasons": []}]))
    assert rows.to_arrow().schema.field("fork_token_ids").type == pyarrow.list_(
        pyarrow.list_(pyarrow.int32())
    )
    assert rows.to_arrow().schema.field("fork_reasons").type == pyarrow.list_(pyarrow.string())
