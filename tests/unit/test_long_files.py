"""The files of tests that take long, and the order in which files begin."""

from __future__ import annotations

from pathlib import Path

from support.long_files import first_files, long_files


def test_the_files_that_are_named_exist_once() -> None:
    tests = Path(__file__).parents[1]
    files = (*long_files, *first_files)
    assert [name for name in files if not (tests / name).is_file()] == []
    assert len(set(files)) == len(files)
