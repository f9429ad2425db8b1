"""Graceful and less graceful ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.signals import StopSignals

if TYPE_CHECKING:
    from pathlib import Path

stubborn = """
import os, signal, sys
from rollog.kernel.signals import StopSignals
with StopSignals() as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.stop.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit("still here")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_only_asks(number: signal.Signals) -> None:
    with StopSignals() as signals:
        assert (signals.stop.is_set(), signals.exit_status) == (False, 0)
        os.kill(os.getpid(), number)

        assert signals.stop.wait(10)
        assert signals.exit_status == 128 + number
        assert not signals.in_a_hurry


def test_the_second_signal_ends_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", stubborn], check=False).returncode == -signal.SIGTERM


def test_more_patience_turns_the_second_signal_into_hurry() -> None:
    with StopSignals(num_graceful=3) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

        assert signals.in_a_hurry
        assert signals.exit_status == 130


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before


importing = """
import sys, time
from rollog.kernel.signals import exit_on_sigterm
exit_on_sigterm(longest_import_seconds=float(sys.argv[1]))
import stopped_meanwhile
time.sleep(30)
"""
dropping = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException:
    pass
"""
changing = """
import os, signal
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
class Record:
    field = Field()
"""
lasting = """
import os, signal, time
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("module", "longest_seconds"),
    [(dropping, 60), (changing, 60), (lasting, 0.1)],
    ids=["dropping", "changing", "lasting"],
)
def test_sigterm_within_an_import_ends_the_process(
    module: str, longest_seconds: float, tmp_path: Path
) -> None:
    (tmp_path / "stopped_meanwhile.py").write_text(module)
    command = [sys.executable, "-c", importing, str(longest_seconds)]
    ended = subprocess.run(command, cwd=tmp_path, timeout=20, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (143, b"")
