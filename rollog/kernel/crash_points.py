"""Named windows of the protocol in which a process can be made to die or to stop, to show that nothing is lost there.

Where the environment variable CRASH_POINTS_DIRECTORY names a directory, a process that reaches a window finds out
whether a file of that name lies there; whoever removes it kills itself with SIGKILL, or stops itself with SIGSTOP where
the file says so: one death, or suspension, for each file. Without the variable, reaching a window does nothing.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path

directory_variable = "CRASH_POINTS_DIRECTORY"
suspends = "suspend"
"""What a file holds that stops whoever removes it."""


class CrashPoint(StrEnum):
    """A window between two effects. Which role dies there is said of each."""

    GRANT_SENT = "grant-sent"
    """The dispatcher has sent a grant and knows nothing of its acknowledgement."""
    SAMPLE_ACKNOWLEDGED = "sample-acknowledged"
    """A worker's sample is in the log, the worker has not taken note of it."""
    STEP_TRAINED = "step-trained"
    """The trainer has trained a step and not sealed it; the one before it may be in flight."""
    STEP_SEALED = "step-sealed"
    """A trainer's step is sealed: its weights are copied, its record lacks their digest alone, nothing is written."""
    HOST_COPY_HALF_FILLED = "host-copy-half-filled"
    """A trainer has copied about half of the tensors of a version from its engine into its host copy."""
    SHARD_HALF_WRITTEN = "shard-half-written"
    """A trainer has written the beginning of a shard of a version into a directory."""
    MANIFEST_MISSING = "manifest-missing"
    """The shards of a trainer's version are durable, their manifest is not written."""
    WEIGHTS_WRITTEN = "weights-written"
    """The weights of a trainer's step are durable, its transaction has not begun."""
    TRANSACTION_OPEN = "transaction-open"
    """The trainer's transaction is open and empty."""
    FUTURES_PENDING = "futures-pending"
    """Everything of the trainer's transaction was handed to its producer, nothing is acknowledged."""
    COMMIT_SENT = "commit-sent"
    """The commit has succeeded, the trainer has not taken note of it."""
    CHECKPOINT_COPIED = "checkpoint-copied"
    """The state of a trainer's engine is copied for a checkpoint, none of which is written."""
    CHECKPOINT_FILE_HALF_WRITTEN = "checkpoint-file-half-written"
    """A rank of the trainer has written the beginning of a checkpoint's file."""
    PRUNE_COMMITTED = "prune-committed"
    """The trainer has committed which versions go, and all their files are there."""
    SWEEP_HALF_DONE = "sweep-half-done"
    """The trainer has deleted one of several files of the weights store."""
    CHECKPOINT_HALF_WRITTEN = "checkpoint-half-written"
    """The trainer's checkpoint has its files, but no manifest."""
    PATCHES_DECODED = "patches-decoded"
    """A segment of a patch is decoded and not written: a worker's copy of the weights is of no version."""
    COPY_BETWEEN_VERSIONS = "copy-between-versions"
    """A segment of a patch is written into a worker's copy of the weights, others are not: it is of no version."""
    SWAP_HALF_DONE = "swap-half-done"
    """The engine of a worker has the weights of a version, and stands still: nobody knows of it."""
    REDO_RUNNING = "redo-running"
    """A restarted trainer has redone a step, and not yet compared its weights."""


def reach(point: CrashPoint) -> None:
    """Die or stop here if somebody wants to see that."""
    directory = os.environ.get(directory_variable)
    if directory is None:
        return
    mark = Path(directory) / point
    try:
        wanted = signal.SIGSTOP if mark.read_text() == suspends else signal.SIGKILL
        mark.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), wanted)
