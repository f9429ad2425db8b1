"""Attempts to get out of a sandbox, each small enough to be made at every start.

Each is a script that runs inside and writes the names of the walls that it got through as a JSON list, or that a limit
has to end. What a script may have done outside is looked at from outside as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.sandbox.config import Limit, SandboxLimits, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Sequence

remedies = {
    "files": "the sandbox shows files outside of it: name less in read_only, and use the locked bubblewrap",
    "environment": "variables of this process are seen inside: use the locked bubblewrap",
    "network": "connections lead out: the kernel needs network namespaces (CONFIG_NET_NS)",
    "processes": "other processes are reached inside: the kernel needs CONFIG_PID_NS and CONFIG_SECCOMP_FILTER",
    "privileges": "more privileges can be had inside: use bubblewrap 0.8 or newer, and a kernel with seccomp",
    "shared memory": "memory is given out that no process holds: the kernel needs CONFIG_SECCOMP_FILTER",
    "disk": "a directory takes more than directory_bytes: use bubblewrap 0.8 or newer, which limits their size",
    "num_files": "files are not counted: /proc/PID/root has to be readable for whoever started the sandbox",
    "num_processes": "more processes can be started than allowed: Linux 5.14 or newer counts them for each sandbox",
    "memory_bytes": "memory is not bounded: /proc/PID/task/TID/children has to be there (CONFIG_PROC_CHILDREN)",
    "cpu_seconds": "processor time is not bounded: /proc/PID/task/TID/children has to be there (CONFIG_PROC_CHILDREN)",
    "wall_seconds": "a command is not ended in time: let this process have processor time",
    "output_bytes": "output is not bounded: let this process have processor time",
    "leftovers": "a process outlives its sandbox: the kernel needs process namespaces (CONFIG_PID_NS)",
}
"""By the name of the wall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """One script and what contains it."""

    walls: tuple[str, ...]
    """What it tries to get through."""
    source: str
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    ended_by: Limit | None = None
    """The limit that has to end it; None: it ends by itself."""

    def walls_broken(self, result: SandboxResult) -> set[str]:
        """The walls that did not hold, by how the script ended; all of its own where it did not run as it should."""
        if self.ended_by is not None:
            return set() if result.limit == self.ended_by else set(self.walls)
        try:
            broken = json.loads(result.stdout) if result.succeeded else self.walls
        except ValueError:
            broken = self.walls
        return set(map(str, broken))


_begin = """
import ctypes, glob, json, mmap, os, signal, socket, subprocess, sys, time
facts = json.load(sys.stdin)
broken = set()
def attempt(wall, function):
    try:
        if function():
            broken.add(wall)
    except (OSError, ValueError):
        pass
def contents(pattern):
    for path in glob.glob(pattern):
        try:
            with open(path, "rb") as file:
                yield path, file.read()
        except OSError:
            pass
def hold():
    time.sleep(facts["hold_seconds"])
"""
_end = """
print(json.dumps(sorted(broken)))
"""

_look_around = """
libc = ctypes.CDLL(None)
def writes(path):
    with open(path, "x") as file:
        file.write(facts["marker"])
    return True
def removed(path):
    os.unlink(path)
    return True
attempt("files", lambda: facts["secret"] in open(facts["secret_file"]).read())
attempt("files", lambda: writes(facts["directory"] + "/written"))
for directory in ("/", "/usr", "/etc", "/dev", "/run"):
    path = directory + "/" + facts["marker"]
    attempt("files", lambda: writes(path) and removed(path))
def foreign_variables():
    for path, content in contents("/proc/[0-9]*/environ"):
        names = {variable.partition(b"=")[0].decode(errors="replace") for variable in content.split(b"\\0")}
        if names & set(facts["variables"]):
            return True
attempt("environment", foreign_variables)
def connects(kind, address):
    with socket.socket(kind) as connection:
        connection.settimeout(2)
        connection.connect(address)
        return True
attempt("network", lambda: connects(socket.AF_INET, ("127.0.0.1", facts["port"])))
attempt("network", lambda: connects(socket.AF_UNIX, "\\0" + facts["marker"]))
attempt("network", lambda: len(socket.if_nameindex()) > 1)
def signals_the_victim():
    for path, content in contents("/proc/[0-9]*/cmdline"):
        if facts["marker"].encode() in content:
            os.kill(int(path.split("/")[2]), signal.SIGKILL)
            return True
attempt("processes", signals_the_victim)
attempt("processes", lambda: os.open("/proc/1/mem", os.O_RDWR))
attempt("processes", lambda: libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0) == 0)
def status(name):
    with open("/proc/self/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(name + ":"))
attempt("privileges", lambda: status("NoNewPrivs") != "1" or int(status("CapEff"), 16) or status("Seccomp") != "2")
attempt("privileges", lambda: libc.unshare(0x10000000) == 0)
attempt("shared memory", lambda: os.memfd_create("probe") > 0)
attempt("shared memory", lambda: libc.shmget(0, 4096, 0o1600) >= 0)
attempt("shared memory", lambda: mmap.mmap(-1, 4096))
attempt("shared memory", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096))
"""

_fill_directories = """
os.makedirs("probe", exist_ok=True)
for directory in ("/box", "/tmp", "/dev/shm", "/", "/dev", "/run", "."):
    path = directory + "/" + facts["marker"]
    size = 0
    try:
        with open(path, "xb", 0) as file:
            while size < 4 << 20:
                size += file.write(bytes(1 << 16))
    except OSError:
        pass
    finally:
        if os.path.exists(path):
            os.unlink(path)
    if size > 1 << 20:
        broken.add("disk")
"""

_many_files = """
for number in range(2000):
    open(f"{facts['marker']}-{number}", "x").close()
hold()
"""

_many_processes = """
children = []
try:
    for _ in range(64):
        child = os.fork()
        if child == 0:
            hold()
            os._exit(0)
        children.append(child)
except OSError:
    pass
if len(children) > 16:
    broken.add("num_processes")
for child in children:
    os.kill(child, signal.SIGKILL)
"""

_memory_of_several = """
for _ in range(5):
    if os.fork() == 0:
        held = b"1" * (32 << 20)
        hold()
        os._exit(0)
hold()
"""

_loops_of_several = """
for _ in range(2):
    if os.fork() == 0:
        break
begun = time.monotonic()
while time.monotonic() < begun + facts["hold_seconds"]:
    pass
"""

_flood = """
begun = time.monotonic()
while time.monotonic() < begun + facts["hold_seconds"]:
    os.write(1, bytes(1 << 16))
"""

_daemon = """
program = "import time; time.sleep({})".format(facts["hold_seconds"])
ready, begun = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program, facts["daemon"]])
    os._exit(0)
os.close(begun)
os.read(ready, 1)
"""


def _small(**limits: float) -> SandboxLimits:
    return SandboxLimits(**{"wall_seconds": 30.0, "cpu_seconds": 30.0} | limits)  # type: ignore[arg-type]


_looking_around = ("files", "environment", "network", "processes", "privileges", "shared memory")

quick_escapes: Sequence[Escape] = tuple(
    Escape(walls=walls, source=f"{_begin}{source}{_end}", limits=limits, ended_by=ended_by)
    for walls, source, limits, ended_by in (
        (_looking_around, _look_around, _small(), None),
        (("disk",), _fill_directories, _small(directory_bytes=1 << 20), None),
        (("num_files",), _many_files, _small(num_files=500), Limit.FILES),
        (("num_processes",), _many_processes, _small(num_processes=16), None),
        (("memory_bytes",), _memory_of_several, _small(memory_bytes=96 << 20), Limit.MEMORY),
        (("cpu_seconds",), _loops_of_several, _small(cpu_seconds=0.1), Limit.CPU),
        (("wall_seconds",), _loops_of_several, _small(wall_seconds=0.2), Limit.WALL),
        (("output_bytes",), _flood, _small(output_bytes=1 << 16), Limit.OUTPUT),
        (("leftovers",), _daemon, _small(), None),
    )
)
"""All of them together take about a second."""
