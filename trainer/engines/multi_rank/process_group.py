"""The process group of the ranks: joining it, leaving it, and exchanging numbers in it.

Beside what DeepSpeed does with gradients and weights, ranks exchange tensors of numbers and nothing else: no object is
pickled, so nothing that arrives can be executed.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainer.engines.multi_rank.ranks import RankGroup
    from trainer.step.ports import Float64Array


def join_process_group(deepspeed: Any, ranks: RankGroup | None, timeout_seconds: float) -> bool:
    """Join the group of these ranks, or be a group of one that needs no address.

    Returns whether it was made for this: an engine beside another one shares its group.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
    if ranks is None or ranks.is_on_this_machine:
        _prefer_loopback()
    is_new = not torch.distributed.is_initialized()
    if is_new:
        torch.distributed.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=torch.distributed.HashStore() if ranks is None else ranks.fresh_store(),  # type: ignore[attr-defined]
            rank=0 if ranks is None else ranks.rank,
            world_size=1 if ranks is None else ranks.world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
    deepspeed.comm.comm.cdb = None
    deepspeed.init_distributed(dist_init_required=False, auto_mpi_discovery=False, verbose=False)
    return is_new


def limit_waiting(timeout_seconds: float) -> None:
    """Give the groups that DeepSpeed has made the limit, too: they begin with PyTorch's own of half an hour."""
    distributed: Any = torch.distributed.distributed_c10d
    for group in list(distributed._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        distributed._set_pg_timeout(timedelta(seconds=timeout_seconds), group)  # noqa: SLF001 - nor another way


def _prefer_loopback() -> None:
    """Keep gloo from looking up this machine's name, which fails where it does not resolve."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def leave_process_group(deepspeed: Any) -> None:
    """Leave it, where there is one."""
    if torch.distributed.is_initialized():
        deepspeed.comm.destroy_process_group()
    deepspeed.comm.comm.cdb = None


def gather_numbers(numbers: Float64Array, device: torch.device) -> list[Float64Array]:
    """The numbers of every rank of the process group, in the order of ranks, bit for bit; a collective operation.

    Counts may differ: they are exchanged first, and shorter arrays travel padded.

    Args:
        numbers: of this rank.
        device: that the group communicates from.
    """
    world_size = torch.distributed.get_world_size()
    if world_size == 1:
        return [numbers]
    own_count = torch.tensor([numbers.size], dtype=torch.int64, device=device)
    counts = [torch.empty_like(own_count) for _ in range(world_size)]
    torch.distributed.all_gather(counts, own_count)
    longest = int(max(counts).item())
    padded = torch.zeros(longest, dtype=torch.float64, device=device)
    padded[: numbers.size] = torch.from_numpy(numbers)
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    torch.distributed.all_gather(gathered, padded)
    return [
        of_rank[: int(count.item())].cpu().numpy() for of_rank, count in zip(gathered, counts, strict=True)
    ]
