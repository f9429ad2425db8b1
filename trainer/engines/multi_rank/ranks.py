"""The ranks of one training job: who this process is among them, and where they meet.

Under a launcher (torchrun, deepspeed) the environment says it: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT. Without one, rank 0 opens a store on the loopback address and starts the others itself.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from rollog.kernel.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

join_seconds = 300.0
"""How long ranks wait for each other to begin with: they load the same libraries, but not from the same disk."""

_loopback = "127.0.0.1"
_loopback_names = frozenset({_loopback, "localhost", "::1"})
_token_bytes = 16
_rank_bytes = 4
_port_key, _token_key = "rollog/port", "rollog/token"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """What a launcher has said to this process."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int

    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Which rank a launcher made this process; None without one, or where it started a single rank.

    Raises ConfigError where the environment says only a part, or what cannot be.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        launched = LaunchedRank(
            rank=rank,
            world_size=world_size,
            local_rank=int(environment.get("LOCAL_RANK", rank)),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE = {environment['WORLD_SIZE']} says that a launcher started several ranks, but RANK, "
            f"MASTER_ADDR and MASTER_PORT do not say which this is ({error}); use torchrun or deepspeed, or unset "
            "WORLD_SIZE"
        ) from error
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK = {rank} is none of WORLD_SIZE = {world_size} ranks; they count from 0")
    return launched


class RankGroup:
    """The ranks of a job as one of them sees it."""

    def __init__(self, *, rank: int, world_size: int, address: str, store: Store) -> None:
        self.rank = rank
        self.world_size = world_size
        self.address = address
        self._store = store
        self._numbers = count()

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the ranks meet at the loopback address."""
        return self.address in _loopback_names

    def fresh_store(self) -> Store:
        """A store that no process group has used yet; the n-th call on every rank gives the same one."""
        return PrefixStore(f"rollog/group-{next(self._numbers)}", self._store)

    def open_meeting_point(self) -> MeetingPoint:
        """On rank 0: where the others connect to."""
        listener = socket.create_server((_loopback if self.is_on_this_machine else "", 0))
        token = secrets.token_bytes(_token_bytes)
        self._store.set(_token_key, token.hex())
        self._store.set(_port_key, str(listener.getsockname()[1]))
        return MeetingPoint(listener, token, range(1, self.world_size))

    def connect(self) -> socket.socket:
        """On another rank: a connection to rank 0. Raises EngineError where there is none."""
        try:
            port = int(self._store.get(_port_key))
            token = bytes.fromhex(self._store.get(_token_key).decode())
            connection = socket.create_connection((self.address, port), timeout=join_seconds)
            connection.sendall(token + self.rank.to_bytes(_rank_bytes, "little"))
        except (OSError, RuntimeError) as error:
            raise EngineError(f"rank 0 cannot be reached at {self.address} ({error})") from error
        connection.settimeout(None)
        return connection


class MeetingPoint:
    """Where rank 0 waits for the others."""

    def __init__(self, listener: socket.socket, token: bytes, awaited: range) -> None:
        self._listener = listener
        self._token = token
        self._arrived: OrderedDict[int, socket.socket] = OrderedDict()
        self.missing = set(awaited)

    def accept(self, timeout_seconds: float) -> tuple[int, socket.socket] | None:
        """The next rank that arrives, with its connection; None where none does in time."""
        self._listener.settimeout(timeout_seconds)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return None
        connection.settimeout(timeout_seconds)
        try:
            hello = connection.recv(_token_bytes + _rank_bytes, socket.MSG_WAITALL)
        except OSError:
            hello = b""
        rank = int.from_bytes(hello[_token_bytes:], "little")
        if not secrets.compare_digest(hello[:_token_bytes], self._token) or rank not in self.missing:
            connection.close()
            return None
        connection.settimeout(None)
        self.missing.remove(rank)
        return rank, connection

    def close(self) -> None:
        """Wait for nobody any more."""
        self._listener.close()


def launched_group(launched: LaunchedRank) -> RankGroup:
    """The ranks that a launcher started. Raises EngineError where they do not meet."""
    try:
        store = _launched_store(launched)
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError(
            f"rank {launched.rank} of {launched.world_size} does not meet the others at "
            f"{launched.address}:{launched.port} ({error}); check MASTER_ADDR and MASTER_PORT"
        ) from error
    return RankGroup(
        rank=launched.rank, world_size=launched.world_size, address=launched.address, store=store
    )


def _launched_store(launched: LaunchedRank) -> Store:
    """Where the ranks of a launcher meet. torchrun has made it; otherwise rank 0 does.

    PyTorch's own listens on every address of the machine, also where all ranks are on it.
    """
    is_made = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if launched.rank == 0 and launched.address in _loopback_names and not is_made:
        return _loopback_store(launched.address, launched.port)[0]
    place = ("env://", launched.rank, launched.world_size)
    store: Store = next(rendezvous(*place, timeout=timedelta(seconds=join_seconds)))[0]
    return store


def _loopback_store(address: str, port: int) -> tuple[Store, int]:
    """A store of this process at a loopback address, and its port; 0 takes a free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=join_seconds),
        master_listen_fd=listener.detach(),
    )
    return store, port


def own_group(num_ranks: int) -> tuple[RankGroup, list[LaunchedRank]]:
    """The ranks that this process, as rank 0, is about to start on this machine, and what to tell each."""
    store, port = _loopback_store(_loopback, 0)
    others = [
        LaunchedRank(rank=rank, world_size=num_ranks, local_rank=rank, address=_loopback, port=port)
        for rank in range(1, num_ranks)
    ]
    return RankGroup(rank=0, world_size=num_ranks, address=_loopback, store=store), others
