"""More ways to take what others need: memory, disk, processor, output, time."""

from __future__ import annotations

import pytest
from support.sandboxes import a_session, attempts, finish, is_running, printed, python, run_python

from producers.sandbox.config import Limit


def test_private_pages_of_a_mapping_are_bounded() -> None:
    source = """
def touches(length):
    held = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, length, 4096):
        held[place] = 1
print(failed(lambda: touches(10 << 30)))
"""
    result = run_python(attempts + source, memory_bytes=256 << 20)
    assert result.limit == Limit.MEMORY or result.stdout == b"True\n"


def test_private_pages_of_a_file_are_bounded() -> None:
    source = """
with open("/box/file", "wb") as file:
    file.truncate(60 << 20)
held = []
def touches():
    for _ in range(40):
        each = mmap.mmap(os.open("/box/file", os.O_RDWR), 60 << 20, mmap.MAP_PRIVATE)
        held.append(each)
        for place in range(0, 60 << 20, 4096):
            each[place] = 1
print(failed(touches))
"""
    result = run_python(attempts + source, memory_bytes=256 << 20)
    assert result.limit == Limit.MEMORY or result.stdout == b"True\n"


def test_pages_that_children_make_their_own_count_for_each() -> None:
    source = """
import os, time
held = bytearray(80 << 20)
for _ in range(12):
    if os.fork() == 0:
        for place in range(0, len(held), 4096):
            held[place] = 1
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
    assert run_python(source, memory_bytes=300 << 20).limit == Limit.MEMORY


def test_memory_of_threads_is_that_of_their_process() -> None:
    source = """
held = []
refused = threading.Event()
def takes():
    try:
        while not refused.is_set():
            held.append(b"1" * (8 << 20))
    except MemoryError:
        refused.set()
threads = []
for _ in range(8):
    thread = threading.Thread(target=takes)
    try: thread.start()
    except RuntimeError: refused.set()  # no memory is left for its stack
    else: threads.append(thread)
for thread in threads: thread.join()
size = len(held) << 3
held.clear()
print(size <= 256)
"""
    result = run_python(attempts + source, memory_bytes=256 << 20)
    assert result.limit == Limit.MEMORY or result.stdout == b"True\n"


def test_a_deep_stack_is_bounded() -> None:
    source = """
import threading
threading.stack_size(1 << 30)
def goes_down(n): return goes_down(n + 1) + 1
sys.setrecursionlimit(10**9)
thread = None
try:
    thread = threading.Thread(target=goes_down, args=(0,))
    thread.start()
    thread.join()
except (RuntimeError, MemoryError):
    print("refused")
"""
    result = run_python(attempts + source, memory_bytes=256 << 20)
    assert result.limit == Limit.MEMORY or not result.succeeded or result.stdout == b"refused\n"


def test_space_of_a_file_that_is_removed_and_held_open_counts() -> None:
    source = """
held = []
def fills():
    for number in range(100):
        file = open("/tmp/x", "wb", 0)
        os.unlink("/tmp/x")
        held.append(file)
        file.write(bytes(1 << 20))
        if os.fstat(file.fileno()).st_size < 1 << 20:
            raise OSError
print(failed(fills), len(held) <= 9)
"""
    assert printed(source, directory_bytes=8 << 20) == "True True"


def test_space_that_is_reserved_without_writing_counts() -> None:
    source = """
print(failed(lambda: os.posix_fallocate(os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR), 0, 32 << 20)))
"""
    assert printed(source, directory_bytes=8 << 20) == "True"


@pytest.mark.parametrize(
    "makes",
    ["os.mkdir(f'/tmp/{number}')", "os.symlink('x', f'/dev/shm/{number}')", "os.mkfifo(f'/box/{number}')"],
)
def test_what_is_no_file_is_counted_like_files(makes: str) -> None:
    source = f"import os\nfor number in range(10**7):\n    {makes}\n"
    assert run_python(source, num_files=3_000).limit == Limit.FILES


def test_more_names_of_one_file_are_counted_like_files() -> None:
    source = """
open("/box/file", "w").close()
for number in range(10**7):
    os.link("/box/file", f"/box/{number}")
"""
    assert run_python(attempts + source, num_files=3_000).limit == Limit.FILES


def test_processes_that_become_other_programs_are_counted() -> None:
    source = """
started = []
def starts():
    for _ in range(200):
        started.append(subprocess.Popen(["sleep", "30"]))
print(failed(starts), len(started) <= 32)
for process in started: process.kill()
for process in started: process.wait()
"""
    assert printed(source, num_processes=32) == "True True"


def test_open_files_of_several_processes_are_bounded_by_their_number() -> None:
    source = """
counts = []
for _ in range(4):
    ready, begun = os.pipe()
    if os.fork() == 0:
        held = []
        try:
            while True: held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            os.write(begun, str(len(held)).encode())
        time.sleep(30)
        os._exit(0)
    counts.append(int(os.read(ready, 10)))
print(max(counts) <= 64)
os.kill(-1, 0)
for line in open("/proc/self/task/%d/children" % os.getpid()).read().split():
    os.kill(int(line), signal.SIGKILL)
"""
    assert printed(source, num_open_files=64) == "True"


def test_threads_that_compute_count_together() -> None:
    source = """
import hashlib, threading
def computes():
    while True: hashlib.sha256(bytes(1 << 20)).digest()
for _ in range(4): threading.Thread(target=computes).start()
"""
    assert run_python(source, cpu_seconds=0.5).limit == Limit.CPU


@pytest.mark.parametrize(
    "waits",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.read(os.pipe()[0], 1)",
        "open(os.mkfifo('/box/pipe') or '/box/pipe')",
        "time.sleep(10**6)",
    ],
)
def test_a_command_that_waits_for_ever_ends_at_its_wall_time(waits: str) -> None:
    assert run_python(f"import os, signal, time\n{waits}", wall_seconds=0.5).limit == Limit.WALL


def test_ten_gigabytes_of_output_are_cut_and_ended() -> None:
    source = """
import subprocess
subprocess.run(["/bin/sh", "-c", "yes | head -c 10G; yes | head -c 10G >&2"])
"""
    result = run_python(source, output_bytes=200_000)
    assert result.limit == Limit.OUTPUT
    assert len(result.stdout) + len(result.stderr) == 200_000


def test_output_of_what_a_command_leaves_behind_ends_with_it() -> None:
    source = """
import os, sys
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"late")
print("first", flush=True)
"""
    result = run_python(source, output_bytes=1 << 20)
    assert result.stdout.replace(b"late", b"")[:6] == b"first\n" or result.limit == Limit.OUTPUT
    assert len(result.stdout) <= 1 << 20


def test_processes_that_make_their_successors_do_not_outlive_the_command() -> None:
    """Each forks and ends at once, so that no list of processes has the next one."""
    marker = "1120.25"
    source = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork() != 0:
            os._exit(0)
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", {marker!r}])
"""

    async def scenario() -> None:
        async with a_session(num_processes=24) as session:
            result = await python(session, source)
            assert result.exit_status == 0 or result.limit is not None
            assert not is_running(marker)
        assert not is_running(marker)

    finish(scenario())


def test_a_child_that_is_stopped_does_not_outlive_the_command() -> None:
    source = """
import os, signal
if os.fork() == 0:
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execvp("sleep", ["sleep", "1121.25"])
os.waitpid(-1, os.WUNTRACED)
os.execvp("sh", ["sh", "-c", "setsid sleep 1121.25 & kill -STOP $!; exit 0"])
"""

    async def scenario() -> None:
        async with a_session() as session:
            assert (await python(session, source)).exit_status == 0
            assert not is_running("1121.25")

    finish(scenario())
