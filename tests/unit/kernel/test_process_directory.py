"""A directory goes with its process, and what a killed one left goes with the next start."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

from support.waiting import max_wait_seconds

from rollog.kernel.file_lock import locked
from rollog.kernel.process_directory import ProcessDirectory

_killed = """
import os, signal, sys
from pathlib import Path
from rollog.kernel.process_directory import ProcessDirectory
made = ProcessDirectory(Path(sys.argv[1]), "killed")
(made.path / "file").touch()
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_directory_is_private_and_goes_with_its_process(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = ProcessDirectory(tmp_path / "home" / "parent", "first")
    finally:
        os.umask(old)
    assert made.path == tmp_path / "home" / "parent" / "first"
    assert stat.S_IMODE(made.path.stat().st_mode) == stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    (made.path / "file").touch()
    made.close()
    made.close()
    assert not made.path.exists()


def test_the_next_start_removes_what_a_killed_process_left_and_no_living_ones(tmp_path: Path) -> None:
    living = ProcessDirectory(tmp_path, "living")
    ended = subprocess.run(
        [sys.executable, "-c", _killed, str(tmp_path)], capture_output=True, text=True, check=False
    )
    left = Path(ended.stdout.strip())
    assert (left / "file").is_file()
    ProcessDirectory(tmp_path, "next").close()
    assert not left.exists()
    assert living.path.is_dir()
    living.close()


def test_nothing_is_removed_while_another_process_looks_at_the_directories(tmp_path: Path) -> None:
    made = ProcessDirectory(tmp_path, "made")
    closing = threading.Thread(target=made.close)
    with locked(tmp_path / "lock"):
        closing.start()
        closing.join(0.3)
        assert (made.path / "lock").is_file()
    closing.join(max_wait_seconds)
    assert not made.path.exists()


def test_a_directory_whose_parent_is_gone_is_closed_without_an_error(tmp_path: Path) -> None:
    made = ProcessDirectory(tmp_path / "parent", "made")
    shutil.rmtree(tmp_path / "parent")
    made.close()
    assert not made.path.exists()
