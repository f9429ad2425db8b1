"""The order of the files of tests."""

from __future__ import annotations

from pathlib import Path

from support.longest_files import longest_files


def test_the_files_that_begin_first_exist() -> None:
    tests = Path(__file__).parents[1]
    assert [name for name in longest_files if not (tests / name).is_file()] == []
    assert len(set(longest_files)) == len(longest_files)
