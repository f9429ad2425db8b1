"""A process that brings versions of a store into a copy; argv: the store, the copy's directory, notices as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import directory_variable
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.weights import WeightsStore
from schemas import WeightsBase, WeightVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.crash_points import CrashPoint


def notices_in(text: str) -> list[WeightVersion]:
    """What `json.dumps` made of notices."""
    found = []
    for fields in json.loads(text):
        base = fields.pop("base")
        found.append(WeightVersion(**fields, base=None if base is None else WeightsBase(**base)))
    return found


def bring_and_die(
    store: WeightsStore, copy: Path, notices: Sequence[WeightVersion], marks: Path, point: CrashPoint
) -> int:
    """Bring these versions in a process of its own that dies at a window; its exit status."""
    marks.mkdir(exist_ok=True)
    (marks / point).touch()
    command = [
        sys.executable,
        __file__,
        store.uri,
        str(copy),
        json.dumps([asdict(notice) for notice in notices]),
    ]
    environment = {**os.environ, directory_variable: str(marks), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


if __name__ == "__main__":
    for each in notices_in(sys.argv[3]):
        WeightsStore(sys.argv[1]).bring(each, VersionCopy(Path(sys.argv[2])))
