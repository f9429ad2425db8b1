"""More ways out of a sandbox: by the kernel's settings, its devices, its other sockets, other processes' memory."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.sandboxes import a_session, finish, limits, printed, python

from producers.sandbox.config import SandboxConfig


def test_nothing_of_the_kernel_can_be_set() -> None:
    source = """
def sets(path):
    open(path, "r+b", 0).write(b"0")
names = ("sys/kernel/core_pattern", "sys/vm/drop_caches", "sys/user/max_user_namespaces", "sysrq-trigger")
print([name for name in names if not failed(lambda: sets("/proc/" + name))])
"""
    assert printed(source) == "[]"


def test_nothing_of_the_processes_that_serve_the_sandbox_can_be_opened() -> None:
    """They outlive commands and have no limits: what is written into them would do so, too."""
    source = """
names = ("mem", "maps", "environ", "root/etc", "fd/0", "task/1/mem", "task/2/mem", "uid_map")
paths = [f"/proc/{process}/{name}" for process in (1, 2) for name in names]
print([path for path in paths if not failed(lambda: os.open(path, os.O_RDWR))])
print([path for path in paths if not failed(lambda: os.open(path, os.O_RDONLY))])
"""
    written, read = printed(source).splitlines()
    assert written == "[]"
    # Everybody may read which users a process has, and which it has none of.
    assert read == "['/proc/2/uid_map']"


def test_nobody_inside_can_make_the_kernel_spare_it_before_others_when_memory_runs_out() -> None:
    source = """
score = os.open("/proc/self/oom_score_adj", os.O_RDWR)
print(os.read(score, 10).decode().strip(),
      failed(lambda: os.write(score, b"-1000")), failed(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)))
"""
    assert printed(source) == "1000 True True"


def test_no_limit_can_be_raised_of_itself_nor_of_the_server() -> None:
    source = """
names = ("RLIMIT_DATA", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_FSIZE")
kinds = [getattr(resource, name) for name in names]
unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
print([failed(lambda: resource.setrlimit(kind, unlimited)) for kind in kinds],
      failed(lambda: resource.prlimit(2, resource.RLIMIT_NPROC, unlimited)))
"""
    assert printed(source) == f"{[True] * 5} True"


def test_no_device_is_there_but_those_that_hold_nothing() -> None:
    source = """
import stat
found = {name for name in os.listdir("/dev") if not os.path.islink("/dev/" + name)}
print(sorted(found - {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "console"}))
print(failed(lambda: os.mknod("/box/disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))),
      failed(lambda: os.mknod("/box/memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))))
"""
    assert printed(source) == "[]\nTrue True"


def test_no_raw_socket_can_be_had() -> None:
    source = """
kinds = [
    (socket.AF_PACKET, socket.SOCK_RAW, 3),
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
]
print([kind for kind in kinds if not failed(lambda: socket.socket(*kind))])
"""
    assert printed(source) == "[]"


def test_no_socket_in_a_directory_outside_can_be_connected_to() -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        Path(name).chmod(0o777)
        path = Path(name) / "socket"
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        listener.setblocking(False)
        source = f"""
def connects(path):
    socket.socket(socket.AF_UNIX).connect(path)
print([failed(lambda: connects(path)) for path in ({str(path)!r}, "/proc/1/root" + {str(path)!r})])
"""
        assert printed(source) == "[True, True]"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_no_address_of_an_interface_can_be_set_and_no_name_is_resolved() -> None:
    source = """
import fcntl, struct
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
up = struct.pack("16sh14x", b"lo", 0)
print(failed(lambda: fcntl.ioctl(plain, 0x8914, up)), failed(lambda: socket.getaddrinfo("example.com", 80)))
"""
    assert printed(source) == "True True"


def test_no_process_can_be_traced_or_its_memory_read() -> None:
    """The server of the sandbox, and the first process, as well as one outside."""
    source = """
attach = 16
def reads(pid):
    there, here = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    class Range(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    ours, theirs = Range(ctypes.addressof(here), 8), Range(ctypes.addressof(there), 8)
    return libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
print([libc.ptrace(attach, pid, 0, 0) for pid in (1, 2, 99999)], [reads(pid) for pid in (1, 2, 99999)])
"""
    assert printed(source) == "[-1, -1, -1] [-1, -1, -1]"


def test_the_namespaces_of_the_first_process_can_not_be_entered() -> None:
    source = """
def enters(name):
    if libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0) < 0:
        raise OSError(ctypes.get_errno(), "")
print([failed(lambda: enters(name)) for name in ("user", "mnt", "pid", "net")])
"""
    assert printed(source) == "[True, True, True, True]"


def test_no_child_can_be_made_in_a_user_namespace_of_its_own() -> None:
    """By clone and by clone3, where `unshare` is one call of several."""
    source = """
new_user = 0x10000000
print(libc.syscall(56, new_user | signal.SIGCHLD, 0, 0, 0, 0))
fields = (ctypes.c_uint64 * 8)(new_user, 0, 0, 0, signal.SIGCHLD)
print(libc.syscall(435, fields, ctypes.sizeof(fields)))
print(subprocess.run(["unshare", "-Ur", "true"], stderr=subprocess.DEVNULL).returncode != 0)
"""
    assert printed(source) == "-1\n-1\nTrue"


def test_no_call_of_an_administrator_does_anything() -> None:
    """reboot, mount, pivot_root, kexec_load, init_module, finit_module, open_by_handle_at, chroot and others."""
    source = """
calls = (169, 165, 155, 246, 175, 313, 304, 161, 163, 103, 164, 167)
print([call for call in calls if libc.syscall(call, 0, 0, 0, 0, 0) != -1])
"""
    assert printed(source) == "[]"


def test_what_one_sandbox_leaves_in_memory_no_other_sees() -> None:
    async def scenario() -> bytes:
        async with a_session() as one, a_session() as other:
            await python(one, "for d in ('/dev/shm', '/tmp', '/box'): open(d + '/left', 'w').write('secret')")
            result = await python(
                other, "import os; print([os.listdir(d) for d in ('/dev/shm', '/tmp', '/box')])"
            )
            return bytes(result.stdout)

    assert finish(scenario()) == b"[[], [], []]\n"


def test_no_other_sandbox_can_be_signalled() -> None:
    async def scenario() -> bytes:
        async with a_session() as one, a_session() as other:
            waiting = [one.interpreter, "-I", "-S", "-c", "import sys; print(sys.stdin.read())"]
            await python(
                other,
                f"import os\nfor pid in [-1, *range({2}, 400)]:\n    if pid != os.getpid():\n"
                "        try: os.kill(pid, 0)\n        except OSError: pass\n",
            )
            return bytes((await one.run(waiting, stdin=b"alive")).stdout)

    assert finish(scenario()) == b"alive\n"


def test_a_directory_that_is_named_as_hidden_is_empty_in_what_is_shown() -> None:
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        outer.chmod(0o755)
        inner = outer / "packages" / "originals"
        inner.mkdir(parents=True)
        (inner / "text").write_text("the original")
        (outer / "packages" / "other").write_text("shown")
        elsewhere = outer / "packages" / "link"
        elsewhere.symlink_to(inner)
        config = SandboxConfig(
            read_only=(outer / "packages",),
            hidden=(elsewhere, Path("/nowhere"), Path("/var")),
            limits=limits(),
        )
        source = f"""
print(sorted(os.listdir({str(outer / "packages")!r})), os.listdir({str(inner)!r}),
      failed(lambda: open({str(inner / "new")!r}, "w")), os.path.exists("/nowhere"), os.path.exists("/var"))
"""
        assert printed(source, config) == "['link', 'originals', 'other'] [] True False False"


def test_a_process_outside_keeps_its_files_to_itself() -> None:
    """Those that were open where the sandbox was started are not inherited."""
    with tempfile.TemporaryFile() as file:
        file.write(b"secret")
        file.flush()
        program = (
            "import asyncio, os, sys\n"
            f"os.set_inheritable({file.fileno()}, True)\n"
            "from producers.sandbox.config import SandboxConfig\n"
            "from producers.sandbox.self_test import run_script\n"
            "source = 'import os; print(sorted(os.listdir(\"/proc/self/fd\")))'\n"
            "print(asyncio.run(run_script(SandboxConfig(), source, b'')).stdout.decode())\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            pass_fds=[file.fileno()],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert result.stdout.strip() == "['0', '1', '2', '3']"
