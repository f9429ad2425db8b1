"""The example of docs/queries.md prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parents[3]


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="asks the questions")
    pytest.importorskip("pyarrow", reason="writes the files")
    page = (root / "docs" / "queries.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    command = re.search(r"^python (examples/query_run\.py .*) --into tables$", page, flags=re.MULTILINE)
    assert command is not None
    done = subprocess.run(
        [sys.executable, *command[1].split(), "--into", str(tmp_path / "tables")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {"steps.parquet", "samples.parquet", "verdicts.parquet"}
