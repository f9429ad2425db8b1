"""Ways out of a sandbox at full size, at least two for each wall."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.sandboxes import a_session, finish, is_running, limits, printed, python, run_python

from producers.processes.ending import process_tree
from producers.sandbox.config import Limit, SandboxConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producers.sandbox.config import SandboxResult


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may read and write, with a secret in it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        (path / "secret").write_text("the secret")
        (path / "secret").chmod(0o666)
        yield path


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(300)", "victim"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("way", ["{}", "/proc/1/root{}", "/proc/self/cwd/../..{}", "/proc/2/cwd/..{}"])
def test_a_file_outside_cannot_be_read(open_directory: Path, way: str) -> None:
    path = way.format(open_directory / "secret")
    assert printed(f"print(failed(lambda: open({path!r}).read()))") == "True"


def test_nothing_can_be_written_outside(open_directory: Path) -> None:
    source = f"""
for path in ({str(open_directory / "new")!r}, "/usr/new", "/usr/bin/new", "/etc/new", "/new", "/dev/new", "/proc/new"):
    assert failed(lambda: open(path, "w")), path
assert failed(lambda: os.remove("/inside.py"))
os.makedirs({str(open_directory)!r}, exist_ok=True)
open({str(open_directory / "secret")!r}, "w").write("altered")
"""
    printed(source)
    assert (open_directory / "secret").read_text() == "the secret"
    assert [path.name for path in open_directory.iterdir()] == ["secret"]


def test_neither_the_users_home_nor_the_repository_is_there() -> None:
    paths = [
        str(Path("~").expanduser()),
        str(Path.cwd()),
        "/home",
        "/root",
        "/var",
        "/etc/passwd",
        "/run/docker.sock",
    ]
    assert printed(f"print([path for path in {paths!r} if os.path.exists(path)])") == "[]"


def test_a_working_directory_and_a_home_below_usr_are_empty_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr/share")
    monkeypatch.setenv("HOME", "/usr/include" if Path("/usr/include").is_dir() else "/usr/share")
    assert printed(f"print(os.listdir('/usr/share'), os.listdir({os.environ['HOME']!r}))") == "[] []"


def test_no_process_inside_has_another_environment_than_it_was_given() -> None:
    source = """
seen = set()
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        seen |= {variable.partition(b"=")[0].decode() for variable in open(path, "rb").read().split(b"\\0")}
    except OSError:
        pass
print(sorted(seen - {"", "PATH", "HOME", "LANG", "PWD", "LC_CTYPE"}))
"""
    assert printed(source) == "[]"


def test_no_connection_leads_to_a_listener_outside() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as by_port,
        socket.socket(socket.AF_UNIX) as by_name,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as by_datagram,
    ):
        by_name.bind(f"\0sandbox-test-{os.getpid()}")
        by_name.listen()
        by_datagram.bind(("127.0.0.1", 0))
        for listener in (by_port, by_name, by_datagram):
            listener.setblocking(False)
        source = f"""
def connects(kind, address):
    connection = socket.socket(kind)
    connection.settimeout(5)
    connection.connect(address)
assert failed(lambda: connects(socket.AF_INET, {by_port.getsockname()!r}))
assert failed(lambda: connects(socket.AF_UNIX, {by_name.getsockname()!r}))
assert failed(lambda: connects(socket.AF_INET, ("192.0.2.1", 80)))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {by_datagram.getsockname()!r})
"""
        printed(source)
        for listener in (by_port, by_name):
            with pytest.raises(BlockingIOError):
                listener.accept()
        with pytest.raises(BlockingIOError):
            by_datagram.recv(10)


def test_the_only_interface_is_the_sandboxs_own_loopback() -> None:
    assert printed("print([name for _, name in socket.if_nameindex()])") == "['lo']"


def test_no_process_outside_is_seen_or_signalled(victim: subprocess.Popen[bytes]) -> None:
    source = f"""
assert failed(lambda: os.kill({victim.pid}, signal.SIGKILL)) or {victim.pid} < 10
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
"""
    assert printed(source) == "[1, 2, 3]"
    assert victim.poll() is None


def test_killing_everything_inside_kills_nothing_outside(victim: subprocess.Popen[bytes]) -> None:
    result = run_python("import os\nos.kill(-1, 9)")
    assert result.limit == Limit.SANDBOX
    assert victim.poll() is None


def test_a_fork_bomb_stays_in_its_sandbox_and_others_go_on() -> None:
    bomb = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

    async def scenario() -> tuple[SandboxResult, int, SandboxResult]:
        async with a_session(wall_seconds=3.0, num_processes=32) as bombed, a_session() as other:
            bombing = asyncio.ensure_future(python(bombed, bomb))
            beside = await python(other, "import os\nif os.fork(): os.wait(), print('forked')")
            most = 0
            while not bombing.done():
                await asyncio.wait({bombing}, timeout=0.1)
                most = max(most, len(list(process_tree(bombed._cell.pid))))
            return await bombing, most, beside

    result, most, beside = finish(scenario())
    assert result.limit in (Limit.WALL, Limit.CPU)
    assert most <= 32 + 2
    assert beside.stdout == b"forked\n"


def test_threads_count_as_processes() -> None:
    source = """
threads = []
def begin():
    threads.append(threading.Thread(target=time.sleep, args=(1,)))
    threads[-1].start()
try:
    while len(threads) < 500:
        begin()
except RuntimeError:
    pass
print(len(threads) <= 32)
"""
    assert printed(source, num_processes=32) == "True"


def test_one_process_cannot_have_ten_gigabytes() -> None:
    source = """
held = []
try:
    while len(held) < 10_000:
        held.append(b"1" * (1 << 20))
except MemoryError:
    held.clear()
    print("refused")
"""
    result = run_python(source)
    assert result.limit == Limit.MEMORY or result.stdout == b"refused\n"


def test_several_processes_cannot_have_ten_gigabytes_together() -> None:
    source = """
import os, time
for _ in range(30):
    if os.fork() == 0:
        held = b"1" * (340 << 20)
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
    assert run_python(source).limit == Limit.MEMORY


def test_pages_that_several_processes_share_count_once() -> None:
    source = """
held = b"1" * (200 << 20)
children = [os.fork() for _ in range(1)]
time.sleep(0.5)
os._exit(0)
"""
    printed(source, memory_bytes=300 << 20)


@pytest.mark.parametrize(
    "call",
    [
        "os.close(os.memfd_create('x'))",
        "mmap.mmap(-1, 1 << 20)",
        "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)",
        "refused(libc.shmget(0, 1 << 20, 0o1600))",
        "refused(libc.semget(0, 1, 0o1600))",
        "refused(libc.msgget(0, 0o1600))",
        "refused(libc.syscall(425, 8, 0))",
        "refused(libc.syscall(0x40000000 + 39))",
    ],
)
def test_memory_that_belongs_to_no_process_cannot_be_had(call: str) -> None:
    source = f"""
def refused(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), "")
print(failed(lambda: {call}))
"""
    assert printed(source) == "True"


def test_an_endless_loop_ends_at_its_processor_time() -> None:
    assert run_python("while True: pass", cpu_seconds=0.3).limit == Limit.CPU


def test_processor_time_of_children_that_have_ended_counts() -> None:
    source = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.05: pass
        os._exit(0)
    os.wait()
"""
    assert run_python(source, cpu_seconds=0.5).limit == Limit.CPU


def test_a_process_that_heeds_no_signal_ends_at_its_wall_time() -> None:
    source = """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True: time.sleep(60)
"""
    assert run_python(source, wall_seconds=0.5).limit == Limit.WALL


def test_directories_take_no_more_than_their_size() -> None:
    source = """
sizes = {}
for directory in ("/box", "/tmp", "/dev/shm", "/", "/dev", "/run", "/proc", "/usr"):
    size = 0
    try:
        for number in range(10):
            with open(f"{directory}/{number}", "wb", 0) as file:
                for _ in range(64):
                    size += file.write(bytes(1 << 20))
    except OSError:
        pass
    sizes[directory] = size >> 20
print(json.dumps(sizes))
"""
    sizes = json.loads(printed(source, directory_bytes=8 << 20))
    assert sizes == {
        "/box": 8,
        "/tmp": 8,
        "/dev/shm": 8,
        **dict.fromkeys(["/", "/dev", "/run", "/proc", "/usr"], 0),
    }


def test_a_file_takes_no_more_than_its_size() -> None:
    result = run_python("open('/box/file', 'wb').write(bytes(2 << 20))", file_bytes=1 << 20)
    assert result.exit_status == 1
    assert b"File too large" in result.stderr


def test_empty_files_are_counted() -> None:
    source = """
for number in range(10**7):
    open(f"/box/{number}", "w").close()
"""
    assert run_python(source).limit == Limit.FILES


def test_open_files_are_counted() -> None:
    source = """
held = []
try:
    while len(held) < 1000:
        held.append(open("/dev/null"))
except OSError as error:
    print(error.errno == errno.EMFILE)
"""
    assert printed(source, num_open_files=64) == "True"


@pytest.mark.parametrize("ignores", [False, True])
def test_a_daemon_does_not_outlive_its_command(ignores: bool) -> None:
    """It holds its output open, too: the command's end is not waited for by that."""
    marker = f"daemon-of-{os.getpid()}"
    source = f"""
import os, signal, sys
ready, begun = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if {ignores}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(300)", {marker!r}])
    os._exit(0)
os.close(begun)
os.read(ready, 1)
print("left")
"""

    async def scenario() -> None:
        async with a_session() as session:
            result = await python(session, source)
            assert (result.stdout, result.limit) == (b"left\n", None)
            assert not is_running(marker)

    finish(scenario())


@pytest.mark.parametrize("descriptor", [1, 2])
def test_a_flood_of_output_is_cut_and_ended(descriptor: int) -> None:
    result = run_python(
        f"import os\nwhile True: os.write({descriptor}, bytes(1 << 16))", output_bytes=100_000
    )
    assert result.limit == Limit.OUTPUT
    assert len(result.stdout) + len(result.stderr) == 100_000


def test_output_and_error_share_their_limit() -> None:
    result = run_python(
        "import os\nwhile True: os.write(1, b'o' * 1000), os.write(2, b'e' * 1000)", output_bytes=50_000
    )
    assert result.limit == Limit.OUTPUT
    assert len(result.stdout) + len(result.stderr) == 50_000


@pytest.mark.parametrize("kind", [0x10000000, 0x00020000, 0x40000000, 0x20000000])
def test_no_namespace_can_be_made_inside(kind: int) -> None:
    assert printed(f"print(libc.unshare({kind}))") == "-1"


def test_nothing_can_be_mounted_and_no_privilege_is_left() -> None:
    source = """
assert libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == -1
assert libc.umount2(b"/usr", 2) == -1
assert libc.chroot(b"/tmp") == -1
assert libc.setuid(0) == -1
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print({name: lines[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")})
"""
    assert printed(source) == str(
        {
            "CapEff": "0" * 16,
            "CapPrm": "0" * 16,
            "CapBnd": "0" * 16,
            "NoNewPrivs": "1",
            "Seccomp": "2",
        }
    )


def test_a_program_that_changes_its_user_gains_nothing() -> None:
    """The mounts heed no set-user-id bit."""
    source = """
options = [line.split()[3] for line in open("/proc/self/mounts") if line.split()[1] in ("/usr", "/box", "/tmp")]
print(all("nosuid" in each.split(",") for each in options), len(options))
"""
    assert printed(source) == "True 3"


def test_root_runs_the_sandbox_as_another_user() -> None:
    def owner_of(pid: int) -> int:
        return Path(f"/proc/{pid}").stat().st_uid

    async def scenario() -> int:
        async with a_session() as session:
            return owner_of(session._cell.pid)

    owner = finish(scenario())
    assert owner == os.getuid() if os.getuid() else owner >= 60_000


def test_the_limits_given_are_those_in_force() -> None:
    config = SandboxConfig(limits=limits(memory_bytes=100 << 20))
    source = "print(resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_CORE))"
    assert printed(source, config) == f"({100 << 20}, {100 << 20}) (0, 0)"
