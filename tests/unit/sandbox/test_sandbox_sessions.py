"""Commands in a sandbox: what they get, what comes back, what of them stays."""

from __future__ import annotations

import asyncio
import gc
import socket
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.sandboxes import a_session, eventually, finish, is_running, limits, python, run_python

from producers.sandbox.cell import Cell
from producers.sandbox.config import Limit, SandboxConfig, SandboxLimits, endpoint_path
from producers.sandbox.sandbox import Sandbox
from producers.sandbox.session import SandboxSession
from rollog.kernel.errors import SandboxError

if TYPE_CHECKING:
    from producers.sandbox.config import SandboxResult


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """One whose walls are tested once for all tests here."""
    tested = Sandbox(SandboxConfig(limits=limits()))
    finish(tested.start())
    return tested


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_command_gives_its_output_and_status(sandbox: Sandbox) -> None:
    result = finish(sandbox.run(["/bin/sh", "-c", "cat; echo said >&2; exit 3"], stdin=b"given"))
    assert (result.exit_status, result.stdout, result.stderr, result.limit) == (3, b"given", b"said\n", None)
    assert not result.succeeded


def test_a_command_sees_only_the_variables_it_is_given(sandbox: Sandbox) -> None:
    result = finish(sandbox.run(["/usr/bin/env"], environment={"A": "1"}))
    variables = sorted(result.stdout.decode().split())
    assert variables == ["A=1", "HOME=/box", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin"]


def test_files_given_to_a_command_lie_in_its_work_directory(sandbox: Sandbox) -> None:
    result = finish(sandbox.run(["cat", "deep/inside/file"], files={"deep/inside/file": b"\0bytes"}))
    assert result.stdout == b"\0bytes"


def test_a_command_that_does_not_exist_has_a_status_and_a_reason(sandbox: Sandbox) -> None:
    result = finish(sandbox.run(["no-such-program"]))
    assert result.exit_status == 127
    assert result.stderr == b"cannot start no-such-program: No such file or directory\n"


def test_a_command_that_a_signal_ends_has_its_negative_number_as_status(sandbox: Sandbox) -> None:
    assert finish(sandbox.run(["/bin/sh", "-c", "kill -TERM $$"])).exit_status == -15


def test_a_shell_string_is_no_command(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="a list of words"):
        finish(sandbox.run("echo 1"))
    with pytest.raises(ValueError, match="a list of words"):
        finish(sandbox.run([]))
    with pytest.raises(ValueError, match="without NUL"):
        finish(sandbox.run(["echo", "a\0b"]))


def test_a_command_that_is_too_long_for_a_packet_is_refused_and_its_session_goes_on() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            with pytest.raises(ValueError, match="give it as file"):
                await session.run(["echo", "x" * 200_000])
            assert (await session.run(["echo", "short"])).stdout == b"short\n"

    finish(scenario())


def test_many_sandboxes_run_at_once_without_seeing_each_other(sandbox: Sandbox) -> None:
    async def scenario() -> list[SandboxResult]:
        command = ["/bin/sh", "-c", "cat > mine; ls /box; cat mine"]
        return await asyncio.gather(*(sandbox.run(command, stdin=str(n).encode()) for n in range(12)))

    assert [result.stdout for result in finish(scenario())] == [f"mine\n{n}".encode() for n in range(12)]


def test_a_large_input_that_a_command_does_not_read_does_not_keep_it(sandbox: Sandbox) -> None:
    assert finish(sandbox.run(["true"], stdin=bytes(4 << 20))).succeeded


def test_a_cancelled_command_is_dead_when_the_cancellation_is_through() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            running = asyncio.ensure_future(session.run(["sleep", "1111.25"]))
            await eventually(lambda: is_running("1111.25"), "the command runs")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not is_running("1111.25")
            with pytest.raises(SandboxError, match="open another"):
                await session.run(["true"])

    finish(scenario())


def test_a_sandbox_that_is_cancelled_while_it_starts_leaves_nothing() -> None:
    seen_in_its_command_line = 123_456_789

    async def scenario(pause_seconds: float) -> None:
        session = SandboxSession(SandboxConfig(limits=limits(memory_bytes=seen_in_its_command_line)))
        starting = asyncio.ensure_future(session.__aenter__())
        await asyncio.sleep(pause_seconds)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await session.__aexit__()

    before = num_open_files()
    for step in range(8):
        finish(scenario(step * 0.01))
    assert not is_running(str(seen_in_its_command_line))
    assert num_open_files() == before


def test_a_loop_that_ends_at_once_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes: Any = vars(asyncio.unix_events)["_UnixReadPipeTransport"]
    ended = pipes._call_connection_lost

    def later(pipe: Any, error: Exception | None) -> None:
        asyncio.get_running_loop().call_later(1.0, ended, pipe, error)

    async def scenario() -> None:
        cell = Cell(SandboxConfig())
        await cell.start()
        cell.kill()
        await asyncio.sleep(0.3)  # It has ended meanwhile.
        await cell.close()

    monkeypatch.setattr(pipes, "_call_connection_lost", later)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        finish(scenario())
        gc.collect()
    assert [each.message for each in said] == []


def test_files_survive_from_one_command_to_the_next_and_processes_do_not() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            await session.run(["/bin/sh", "-c", "echo kept > file; sleep 1112.25 & sleep 1112.25 &"])
            assert not is_running("1112.25")
            assert (await session.run(["cat", "file"])).stdout == b"kept\n"

    finish(scenario())


def test_a_session_goes_on_after_a_command_that_a_limit_ended() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            await session.write("file", b"kept")
            late = await session.run(["sleep", "30"], wall_seconds=0.2)
            assert (late.limit, late.exit_status) == (Limit.WALL, -9)
            assert (await session.run(["yes"])).limit == Limit.OUTPUT
            assert await session.read("file") == b"kept"

    finish(scenario())


def test_processor_time_is_counted_for_each_command_anew() -> None:
    async def scenario() -> None:
        busy = "import time\nwhile time.process_time() < 0.6: pass"
        async with a_session(cpu_seconds=1.0) as session:
            for _ in range(3):
                assert (await python(session, busy)).succeeded

    finish(scenario())


def test_a_session_runs_one_command_at_a_time() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            first = asyncio.ensure_future(session.run(["cat"], stdin=b"x"))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="one command at a time"):
                await session.run(["true"])
            assert (await first).stdout == b"x"

    finish(scenario())


def test_a_command_that_kills_the_server_ends_its_session_alone() -> None:
    async def scenario() -> None:
        async with a_session() as session, a_session() as other:
            result = await session.run(["/bin/sh", "-c", "kill -9 2; sleep 30"])
            assert (result.limit, result.exit_status) == (Limit.SANDBOX, None)
            assert not session.is_open
            assert (await other.run(["true"])).succeeded

    finish(scenario())


def test_a_command_that_stops_the_server_is_ended_with_its_session() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            # What it says ends it, so that the server is stopped by then.
            result = await session.run(["/bin/sh", "-c", "kill -STOP 2; yes 1113.25"], output_bytes=1000)
            assert (result.limit, result.exit_status) == (Limit.OUTPUT, None)
            assert not is_running("1113.25")

    finish(scenario())


def test_a_command_can_neither_look_into_the_server_nor_take_its_socket() -> None:
    source = """
import os
for path in ("/proc/2/mem", "/proc/2/environ", "/proc/2/maps"):
    try:
        open(path, "rb").read(1)
        print("read", path)
    except OSError:
        pass
try:
    print(os.listdir("/proc/2/fd"))
except OSError:
    pass
print(sorted(os.listdir("/proc/self/fd")))
"""
    result = run_python(source)
    assert result.stdout == b"['0', '1', '2', '3']\n"


def test_a_file_is_copied_in_and_out_by_its_bytes() -> None:
    content = bytes(range(256)) * 4096

    async def scenario() -> bytes:
        async with a_session() as session:
            await session.write("a/b/c", content)
            return await session.read("a/b/c")

    assert finish(scenario()) == content


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_work_directory_is_refused(path: str) -> None:
    async def scenario() -> None:
        async with a_session() as session:
            with pytest.raises(ValueError, match="no path below the work directory"):
                await session.write(path, b"x")
            with pytest.raises(ValueError, match="no path below the work directory"):
                await session.read(path)

    finish(scenario())


def test_a_link_that_leads_out_of_the_work_directory_is_not_followed() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            await session.run(["ln", "-s", "/usr/bin/env", "file"])
            await session.run(["ln", "-s", "/tmp", "directory"])
            with pytest.raises(SandboxError, match="out of the work directory"):
                await session.read("file")
            with pytest.raises(SandboxError, match="out of the work directory"):
                await session.write("directory/file", b"x")

    finish(scenario())


def test_a_file_longer_than_allowed_is_not_read() -> None:
    async def scenario() -> None:
        async with a_session() as session:
            await session.write("file", bytes(2000))
            with pytest.raises(SandboxError, match=r"was not read.*output_bytes"):
                await session.read("file", most_bytes=1000)
            with pytest.raises(SandboxError, match="No such file"):
                await session.read("other")

    finish(scenario())


def test_one_socket_can_be_bound_in_and_is_the_only_way_out() -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        Path(name).chmod(0o755)
        path = Path(name) / "socket"
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(30)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"hello from outside")

        thread = threading.Thread(target=answer)
        thread.start()
        source = f"""
import socket
connection = socket.socket(socket.AF_UNIX)
connection.connect({endpoint_path!r})
print(connection.recv(100).decode())
"""
        result = run_python(source, SandboxConfig(endpoint=path, limits=limits()))
        thread.join(30)
    assert result.stdout == b"hello from outside\n"


def test_a_named_directory_is_shown_and_cannot_be_written_to() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        (Path(name) / "file").write_text("shown")
        source = f"""
print(open("{name}/file").read())
try:
    open("{name}/other", "w")
except OSError as error:
    print(error.strerror)
"""
        result = run_python(source, SandboxConfig(read_only=(Path(name),), limits=limits()))
    assert result.stdout == b"shown\nRead-only file system\n"


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SandboxLimits\.wall_seconds = 0 must be above 0"):
        SandboxLimits(wall_seconds=0)
