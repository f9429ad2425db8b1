"""A worker's side of the copy of a machine; argv: the store, the shared directory, notices as JSON, what to do then.

It prints a line when a version is there: its path. `hold` keeps the copy until standard input ends, `end` releases it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import directory_variable
from rollog.kernel.versions.shared_copy import SharedCopy
from rollog.kernel.weights import WeightsStore
from support.copy_process import notices_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.versions.copies import VersionCopy
    from schemas import WeightVersion


def distant_store(uri: str) -> WeightsStore:
    """A store on this disk, read as one that is not."""
    store = WeightsStore(uri)
    store.is_local = False
    return store


def sharing_process(
    store: WeightsStore, shared: Path, notices: Sequence[WeightVersion], then: str, marks: Path | None = None
) -> subprocess.Popen[str]:
    """Brings these versions one after the other in a process of its own; `marks` has the windows where it dies."""
    text = json.dumps([asdict(notice) for notice in notices])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if marks is not None:
        environment[directory_variable] = str(marks)
    return subprocess.Popen(
        [sys.executable, __file__, store.uri, str(shared), text, then],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Run as a process."""
    store, copy = distant_store(sys.argv[1]), SharedCopy(Path(sys.argv[2]))
    for notice in notices_in(sys.argv[3]):

        def bring(own: VersionCopy, notice: WeightVersion = notice) -> Path:
            return store.bring(notice, own)

        print(copy.bring(notice, bring), flush=True)  # noqa: T201 - what the test waits for
        if sys.argv[4] == "end":
            copy.release()
    sys.stdin.read()
    copy.close()


if __name__ == "__main__":
    main()
