"""Rows of a run with a type for each column, as Arrow, pandas or `datasets`, streamed as far as the form allows.

The libraries are extras: each is imported when its form is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import datasets
    import pandas as pd
    import pyarrow as pa

Row = dict[str, Any]
"""One row: plain values of Python by the name of their column."""

rows_at_once = 1000

_names_of_types = {
    "whole": "int64",
    "real": "float64",
    "text": "string",
    "wholes": "int64[]",
    "wholes32": "int32[]",
    "reals": "float64[]",
    "reals32": "float32[]",
    "texts": "string[]",
    "lists": "int64[][]",
    "lists32": "int32[][]",
    "real_lists32": "float32[][]",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a run. Each form reads the run anew, and shows what it holds then.

    `columns` gives the type of each column: int64, float64, string, or a list such as int32[]. Iterating gives one
    dictionary after the other, without any extra. Reading raises LedgerError for a broken ledger and for a record
    that is gone or was altered.
    """

    columns: Mapping[str, str]
    _read: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        """One row after the other; one training step is held at a time."""
        return self._read()

    def batches(self, num_rows: int = rows_at_once) -> Iterator[pa.RecordBatch]:
        """Arrow batches of so many rows, for what does not fit into memory. Raises ConfigError without pyarrow."""
        pyarrow = imported("pyarrow", "Arrow tables")
        schema = arrow_schema(self.columns)
        for rows in in_batches(self, num_rows):
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table in memory. Raises ConfigError without pyarrow."""
        pyarrow = imported("pyarrow", "Arrow tables")
        return pyarrow.Table.from_batches(self.batches(), schema=arrow_schema(self.columns))

    def to_pandas(self) -> pd.DataFrame:
        """All rows as one frame in memory. Raises ConfigError without pandas."""
        imported("pandas", "pandas frames")
        return self.to_arrow().to_pandas()

    def to_dataset(self) -> datasets.Dataset:
        """All rows as a dataset of Hugging Face, in memory. Raises ConfigError without `datasets`."""
        return imported("datasets", "datasets").Dataset(self.to_arrow())


def column_types(**names_by_type: str) -> dict[str, str]:
    """Columns with their types, from the names that share one: `column_types(whole="step lag", text="prompt")`."""
    return {name: _names_of_types[kind] for kind, names in names_by_type.items() for name in names.split()}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The columns for Arrow, so that one that is null in one batch has the same type in all."""
    pyarrow = imported("pyarrow", "Arrow tables")

    def typed(name: str) -> Any:
        if name.endswith("[]"):
            return pyarrow.list_(typed(name.removesuffix("[]")))
        return pyarrow.type_for_alias(name)

    return pyarrow.schema([(column, typed(name)) for column, name in columns.items()])


def in_batches(rows: Iterable[Row], num_rows: int = rows_at_once) -> Iterator[list[Row]]:
    """Lists of so many rows; the last one may have fewer. Raises ValueError for a number below 1."""
    if num_rows < 1:
        raise ValueError(f"num_rows = {num_rows}: a batch has one row at least")
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == num_rows:
            yield batch
            batch = []
    if batch:
        yield batch


def imported(library: str, what: str) -> Any:
    """A library of the extra `data`. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ConfigError(f"{what} need {library}, which is not installed; install rollog[data]") from error
