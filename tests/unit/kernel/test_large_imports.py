"""The garbage collector rests while large libraries are imported, and only then."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.large_imports import large_imports

if TYPE_CHECKING:
    from pathlib import Path


def import_in_vain() -> None:
    with large_imports():
        assert not gc.isenabled()
        raise ModuleNotFoundError


def test_garbage_is_looked_for_again_afterwards_whatever_came() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_in_vain()
    assert gc.isenabled()


def test_who_looks_for_none_goes_on_so() -> None:
    gc.disable()
    try:
        with large_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_imported_is_not_walked_over_again(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("kept = [[] for _ in range(1000)]")
    code = (
        "import gc\n"
        "from rollog.kernel.large_imports import large_imports\n"
        "with large_imports():\n"
        "    import large\n"
        "assert gc.isenabled()\n"
        "walked_over = {id(each) for each in gc.get_objects()}\n"
        "assert not any(id(each) in walked_over for each in large.kept)\n"
        "frozen = gc.get_freeze_count()\n"
        "later = []\n"
        "with large_imports():\n"
        "    import large\n"
        "assert gc.get_freeze_count() == frozen, 'nothing was imported'\n"
        "assert any(each is later for each in gc.get_objects())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
