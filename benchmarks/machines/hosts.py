"""Hosts: network namespaces of this machine, joined by a wire whose links can be made worse.

The first host is this process itself, which leaves the machine's network for a namespace of its own; everything it
starts is there with it. Each other host is a namespace that a sleeping process holds, so that nothing is left behind,
however this process ends. Needs Linux, root or CAP_SYS_ADMIN with CAP_NET_ADMIN, /dev/net/tun, and the commands of
iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rollog.kernel.errors import ConfigError
from rollog.kernel.processes import ChildProcess, launcher_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from benchmarks.machines.link import Conditions

_clone_new_network = 0x40000000
_tun_set_interface = 0x400454CA
_tun_without_information = 0x0001 | 0x1000
_tun = Path("/dev/net/tun")
_needed = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_network = "10.77.0"


def what_is_missing() -> str | None:
    """Why this machine cannot make hosts, with the remedy; None where it can."""
    for command, package in _needed.items():
        if shutil.which(command) is None:
            return f"the command {command} is missing: install {package}, for example with apt-get install {package}"
    if not _tun.exists():
        return f"{_tun} is missing: load the kernel's module tun, or run on a machine that has it"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "tuntap", "add", "rollog-try", "mode", "tun"],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"no network namespace can be made ({tried.stderr.strip()}): run as root, with CAP_NET_ADMIN"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host: its address, and the process that holds its namespace (None: this process's own)."""

    name: str
    address: str
    holder: ChildProcess | None

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, run on this host."""
        if self.holder is None:
            return list(command)
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--", *command]

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start a process on this host; what it says goes to `log`."""
        return ChildProcess.start(self.inside(command), log_path=log, environment=environment)

    def set_link(self, *, is_up: bool) -> None:
        """Take the link of this host down or up, as its own system sees it."""
        _call(self.inside(["ip", "link", "set", _device(self.name), "up" if is_up else "down"]))


class Hosts:
    """Hosts of these names on one network; the first is this process. Raises ConfigError where there can be none."""

    def __init__(self, names: Sequence[str], directory: Path, seed: int) -> None:
        missing = what_is_missing()
        if missing is not None:
            raise ConfigError(missing)
        self._directory = directory
        _leave_network()
        descriptors = {}
        self._hosts: dict[str, Host] = {}
        for number, name in enumerate(names, start=1):
            self._hosts[name] = self._made(name, f"{_network}.{number}", is_first=number == 1)
            descriptors[name] = _joined(self._hosts[name])
        self._wire = subprocess.Popen(
            launcher_command(
                [sys.executable, "-m", "benchmarks.machines.wire", str(seed)]
                + [f"{host.address}={descriptors[host.name]}" for host in self._hosts.values()]
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=tuple(descriptors.values()),
        )
        for descriptor in descriptors.values():
            os.close(descriptor)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._wire.kill()
        self._wire.wait()
        for stream in (self._wire.stdin, self._wire.stdout):
            if stream is not None:
                stream.close()
        for host in self._hosts.values():
            if host.holder is not None:
                host.holder.kill()

    def set_conditions(self, name: str, conditions: Conditions) -> dict[str, int]:
        """Give the link of a host another state; returns how many packets were carried and dropped so far."""
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        order = {"address": self._hosts[name].address, **asdict(conditions)}
        self._wire.stdin.write(json.dumps(order) + "\n")
        self._wire.stdin.flush()
        counts: dict[str, int] = json.loads(self._wire.stdout.readline())
        return counts

    def _made(self, name: str, address: str, *, is_first: bool) -> Host:
        holder = None
        if not is_first:
            # The shell says that it runs, and so that the namespace is there, before anything is moved into it.
            ready = self._directory / f"host-{name}.log"
            command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
            holder = ChildProcess.start(command, log_path=ready)
            while "ready" not in ready.read_text():
                if holder.poll() is not None:
                    raise ConfigError(f"no namespace for host {name}: {' '.join(holder.last_lines())}")
        return Host(name=name, address=address, holder=holder)


def _leave_network() -> None:
    """Give this thread, and all that it starts, a network of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_clone_new_network) != 0:
        number = ctypes.get_errno()
        raise ConfigError(f"no network namespace can be made: {os.strerror(number)}; run as root")


def _joined(host: Host) -> int:
    """Put a TUN device with the host's address on it; returns the descriptor of the wire's end."""
    device = _device(host.name)
    descriptor = os.open(_tun, os.O_RDWR)
    fcntl.ioctl(
        descriptor, _tun_set_interface, struct.pack("16sH", device.encode(), _tun_without_information)
    )
    if host.holder is not None:
        _call(["ip", "link", "set", device, "netns", str(host.holder.pid)])
    _call(host.inside(["ip", "address", "add", f"{host.address}/24", "dev", device]))
    for each in ("lo", device):
        _call(host.inside(["ip", "link", "set", each, "up"]))
    return descriptor


def _device(name: str) -> str:
    return f"wire-{name}"[:15]


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # our own command
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed: {done.stderr.strip()}")
