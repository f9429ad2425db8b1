"""The tables of a run as Parquet files, and questions to them in SQL.

    python examples/query_run.py --archive tests/data/recorded/run.zip --into tables

Needs rollog[data] and duckdb. Instead of an archive, --run NAME reads a run on a broker (--broker HOST:PORT), or on the
embedded one. The files are plain Parquet: any engine reads them, and a catalogue such as Iceberg's takes them in.
"""  # noqa: INP001

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet

import rollog

questions = {
    "what became of samples": """
        SELECT disposition, count(*) AS num FROM verdicts GROUP BY disposition ORDER BY num DESC, disposition""",
    "reward and length by step": """
        SELECT step, round(avg(reward), 3) AS reward, round(avg(len(token_ids)), 1) AS tokens, max(lag) AS lag
        FROM samples GROUP BY step ORDER BY step LIMIT 5""",
    "tokens by the version that made them": """
        SELECT version, sum(segment_end - segment_start) AS tokens
        FROM (SELECT unnest(segment_versions) AS version, unnest(segment_ends) AS segment_end,
                     unnest(list_prepend(0, segment_ends[:-2])) AS segment_start FROM samples)
        GROUP BY version ORDER BY version LIMIT 5""",
    "prompts by their mean reward": """
        SELECT prompt_id, count(*) AS samples, round(avg(reward), 3) AS reward
        FROM samples GROUP BY prompt_id ORDER BY reward, prompt_id LIMIT 5""",
}


def write_tables(run: rollog.Run, directory: Path) -> None:
    """One Parquet file for each table, a batch at a time: no table has to fit into memory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in (("steps", run.steps()), ("samples", run.samples()), ("verdicts", run.verdicts())):
        batches = table.batches()
        first = next(batches)
        with pyarrow.parquet.ParquetWriter(directory / f"{name}.parquet", first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def ask(directory: Path) -> None:
    """Print the answers."""
    with duckdb.connect() as connection:
        for name in ("steps", "samples", "verdicts"):
            connection.read_parquet(str(directory / f"{name}.parquet")).create_view(name)
        for title, question in questions.items():
            answer = connection.execute(question)
            columns = [column[0] for column in answer.description or ()]
            sys.stdout.write(f"{title}\n  {' '.join(columns)}\n")
            for row in answer.fetchall():
                sys.stdout.write(f"  {' '.join(map(str, row))}\n")


def main() -> None:
    """Write, then ask."""
    parser = argparse.ArgumentParser(description="Write the tables of a run as Parquet and query them.")
    parser.add_argument("--archive", help="file that `rollog export` made")
    parser.add_argument("--run", help="name of a run on a broker")
    parser.add_argument("--broker", help="host:port; the embedded broker without it")
    parser.add_argument("--into", type=Path, required=True, help="directory of the Parquet files")
    given = parser.parse_args()
    with rollog.open_run(given.run, archive=given.archive, broker=given.broker) as run:
        write_tables(run, given.into)
    ask(given.into)


if __name__ == "__main__":
    main()
