"""What the processes of a command look like from outside: words, environment, listening sockets, libraries (Linux)."""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path

_listening = "0A"
_v4_digits = 8


@dataclass(frozen=True, slots=True)
class Process:
    """One process at a moment."""

    pid: int
    command: str
    environment: str
    listens: frozenset[tuple[str, int]]
    libraries: frozenset[str]
    """Names of the shared libraries it has loaded."""

    def as_also_seen(self, earlier: Process | None) -> Process:
        """The same process with what it listened on and had loaded at an earlier moment, too."""
        if earlier is None:
            return self
        return replace(
            self, listens=self.listens | earlier.listens, libraries=self.libraries | earlier.libraries
        )


def processes_below(root: int) -> list[Process]:
    """`root` and everything it has started, as far as it lives."""
    parents = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                status = (directory / "stat").read_text()
            except OSError:
                continue
            parents[int(directory.name)] = int(status.rpartition(")")[2].split()[1])
    found, new = {root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    seen = [_process(pid) for pid in sorted(found)]
    return [process for process in seen if process is not None]


def places_of(root: int) -> set[tuple[str, int]]:
    """Where `root` and everything it has started listen."""
    return {place for process in processes_below(root) for place in process.listens}


def open_to_others(places: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those that other machines may reach."""
    return {(host, port) for host, port in places if not ipaddress.ip_address(host).is_loopback}


def _process(pid: int) -> Process | None:
    place = Path("/proc") / str(pid)
    try:
        command = (place / "cmdline").read_text(errors="replace").replace("\0", " ")
        environment = (place / "environ").read_text(errors="replace")
        maps = (place / "maps").read_text()
        inodes = {found[1] for link in (place / "fd").iterdir() if (found := _socket(link))}
        sockets = [
            *(place / "net" / "tcp").read_text().splitlines()[1:],
            *(place / "net" / "tcp6").read_text().splitlines()[1:],
        ]
    except OSError:  # it has ended
        return None
    fields = [line.split() for line in sockets]
    listens = frozenset(_place(line[1]) for line in fields if line[3] == _listening and line[9] in inodes)
    libraries = frozenset(re.findall(r"/([^/\n]+\.so[^/\n]*)$", maps, re.MULTILINE))
    return Process(pid, command, environment, listens, libraries)


def _socket(link: Path) -> re.Match[str] | None:
    try:
        return re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
    except OSError:
        return None


def _place(text: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1, port 8080: words of the address are in the machine's order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + _v4_digits], 16) for at in range(0, len(address), _v4_digits)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)
