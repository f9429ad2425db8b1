"""The supervisor over real, tiny child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import ChildFailed
from rollog.kernel.processes import ChildProcess, launcher_command
from rollog.run.restart_policy import RestartPolicy
from rollog.run.supervisor import RoleSpec, RoleState, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

quick = RestartPolicy(max_restarts=2, first_delay_seconds=0.01, longest_delay_seconds=0.02)

wait_for_sigterm = """
import pathlib, signal, sys
def end(number, frame):
    with open(sys.argv[1], "a") as order:
        order.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1] + "." + sys.argv[2]).touch()
while True:
    signal.pause()
"""

ignore_sigterm = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""

parent_of_a_sleeper = """
import sys, pathlib
from rollog.kernel.processes import ChildProcess
command = [sys.executable, "-c", "import time; time.sleep(600)"]
child = ChildProcess.start(command, log_path=pathlib.Path(sys.argv[1]))
pathlib.Path(sys.argv[2] + ".new").write_text(str(child.pid))
pathlib.Path(sys.argv[2] + ".new").rename(sys.argv[2])
child.process.wait()
"""

starter_of_a_stray = """
import subprocess, sys, pathlib
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(stray.pid))
"""


def a_role(
    tmp_path: Path, script: str, *arguments: object, name: str = "trainer", kind: str = "train"
) -> RoleSpec:
    return RoleSpec(
        name=name,
        kind=kind,
        command=(sys.executable, "-c", script, *map(str, arguments)),
        log_path=tmp_path / "logs" / f"{name}.log",
    )


def until(condition: Callable[[], object], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def make(*roles: RoleSpec, stop_timeout_seconds: float = 30) -> Supervisor:
        made.append(Supervisor(roles, policy=quick, stop_timeout_seconds=stop_timeout_seconds))
        made[-1].start()
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close()


def turned(supervisor: Supervisor) -> bool:
    supervisor.run_once()
    return supervisor.is_finished


def test_roles_that_end_well_are_done(supervise: Callable[..., Supervisor], tmp_path: Path) -> None:
    supervisor = supervise(a_role(tmp_path, "print('hello')"))

    until(lambda: turned(supervisor))

    assert supervisor.roles[0].state is RoleState.DONE
    assert (tmp_path / "logs" / "trainer.log").read_text() == "hello\n"


def test_a_role_that_died_once_is_started_again(supervise: Callable[..., Supervisor], tmp_path: Path) -> None:
    script = """
import os, pathlib, signal, sys
if not pathlib.Path(sys.argv[1]).exists():
    pathlib.Path(sys.argv[1]).touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    supervisor = supervise(a_role(tmp_path, script, tmp_path / "was here"))

    until(lambda: turned(supervisor))

    assert supervisor.roles[0].num_restarts == 1
    assert supervisor.roles[0].reason == "killed by SIGKILL"


def test_a_crash_loop_ends_with_the_last_lines_of_the_log(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    supervisor = supervise(a_role(tmp_path, "raise SystemExit('no such model')"))

    with pytest.raises(ChildFailed, match=r"(?s)trainer was given up: exit status 1.*no such model"):
        until(lambda: turned(supervisor))

    assert supervisor.roles[0].num_restarts == 2


@pytest.mark.parametrize("status", [78, 2])
def test_a_fenced_or_misconfigured_role_is_not_started_again(
    supervise: Callable[..., Supervisor], tmp_path: Path, status: int
) -> None:
    supervisor = supervise(a_role(tmp_path, f"raise SystemExit({status})"))

    with pytest.raises(ChildFailed, match=f"exit status {status}"):
        until(lambda: turned(supervisor))

    assert supervisor.roles[0].num_restarts == 0


def test_one_of_two_workers_may_be_given_up(supervise: Callable[..., Supervisor], tmp_path: Path) -> None:
    supervisor = supervise(
        a_role(tmp_path, "raise SystemExit(2)", name="rollout-0", kind="rollout"),
        a_role(tmp_path, "pass", name="rollout-1", kind="rollout"),
    )

    until(lambda: turned(supervisor))

    assert [role.state for role in supervisor.roles] == [RoleState.GIVEN_UP, RoleState.DONE]


def test_roles_are_stopped_in_order_of_their_kinds(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    order, names = tmp_path / "order", ["dispatcher", "rollout-0", "trainer"]
    supervisor = supervise(
        *(a_role(tmp_path, wait_for_sigterm, order, name, name=name, kind=name) for name in names)
    )
    until(lambda: all(Path(f"{order}.{name}").exists() for name in names))

    supervisor.stop()

    assert order.read_text().split() == names
    assert {role.state for role in supervisor.roles} == {RoleState.STOPPED}


def test_a_role_that_ignores_sigterm_is_killed_after_the_deadline(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    supervisor = supervise(a_role(tmp_path, ignore_sigterm, tmp_path / "ready"), stop_timeout_seconds=0.05)
    until((tmp_path / "ready").exists)

    supervisor.stop()

    assert supervisor.roles[0].reason == "took too long"
    assert supervisor.roles[0].child is not None
    assert not is_alive(supervisor.roles[0].child.pid)


def test_a_start_is_ended_at_once_and_all_roles_together(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    names = ["dispatcher", "trainer"]
    supervisor = supervise(
        *(a_role(tmp_path, ignore_sigterm, tmp_path / name, name=name, kind=name) for name in names),
        stop_timeout_seconds=3600,
    )
    until(lambda: all((tmp_path / name).exists() for name in names))

    supervisor.stop(at_once_within_seconds=0.05)

    assert {role.state for role in supervisor.roles} == {RoleState.STOPPED}
    assert {role.reason for role in supervisor.roles} == {"took too long"}


def test_a_second_signal_does_not_wait_for_the_deadline(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    supervisor = supervise(a_role(tmp_path, ignore_sigterm, tmp_path / "ready"), stop_timeout_seconds=3600)
    until((tmp_path / "ready").exists)

    supervisor.stop(hurry=lambda: True)

    assert supervisor.roles[0].state is RoleState.STOPPED


def test_what_a_dead_role_started_does_not_outlive_it(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    supervisor = supervise(a_role(tmp_path, starter_of_a_stray, tmp_path / "stray"))

    until(lambda: turned(supervisor))

    stray = int((tmp_path / "stray").read_text())
    until(lambda: not is_alive(stray))


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", parent_of_a_sleeper, tmp_path / "log", written])
    try:
        until(written.exists)
        child = int(written.read_text())
        assert is_alive(child)
    finally:
        parent.kill()
        parent.wait()

    until(lambda: not is_alive(child))


def test_a_child_whose_parent_died_before_it_could_ask_leaves() -> None:
    command = launcher_command([sys.executable, "-c", "pass"], parent_pid=os.getpid() + 1)

    assert subprocess.run(command, check=False).returncode == 143


def test_children_do_not_share_the_terminal_group_of_their_parent(tmp_path: Path) -> None:
    child = ChildProcess.start(
        [sys.executable, "-c", "import time; time.sleep(600)"], log_path=tmp_path / "log"
    )
    try:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        assert child.kill() == -signal.SIGKILL


def test_a_command_that_does_not_exist_says_so_in_its_log(tmp_path: Path) -> None:
    child = ChildProcess.start(["/no/such/program"], log_path=tmp_path / "log")

    until(lambda: child.poll() is not None)

    assert child.poll() == 127
    assert child.last_lines() == ["cannot start /no/such/program: No such file or directory"]
