"""The functions of SMDDP v1, which are a part of torch.distributed's, for ranks that a launcher started.

import smdistributed.dataparallel.torch.distributed as dist

dist.init_process_group()
torch.cuda.set_device(dist.get_local_rank())
dist.all_reduce(tensor, op=dist.ReduceOp.AVERAGE)
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.data_parallel.api import install
from herringbone_parallel.torch.data_parallel.backend import NAME

__all__ = [
    "is_available", "init_process_group", "is_initialized", "get_world_size", "get_rank", "get_local_rank",
    "all_reduce", "broadcast", "all_gather", "all_to_all_single", "barrier", "group", "ReduceOp",
]  # fmt: skip


class ReduceOp:
    """The operations of `all_reduce`."""

    SUM = dist.ReduceOp.SUM
    AVERAGE = dist.ReduceOp.AVG
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX


class group:  # noqa: N801  v1's name
    """`group.WORLD` is all ranks, the only group of v1; groups of `torch.distributed.new_group` work, too."""

    WORLD = None


def is_available() -> bool:
    """Return True if this process was launched as a rank of a distributed job."""
    return dist.is_available() and RankVariable.RANK in os.environ


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: timedelta | None = None, **others: Any
) -> None:
    """Join the other ranks of the job; no argument is needed.

    `backend` may be "smddp", or the backend of the other collectives on this host: "nccl" with CUDA devices, "gloo"
    without. Raises `ParallelError` for another backend, and for an `init_method` other than "env://", because the
    launcher has chosen the rendezvous.
    """
    local_backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend not in (None, NAME, local_backend):
        raise ParallelError(
            f"init_process_group({backend!r}): on this host it is {NAME!r}, {local_backend!r}, or left out"
        )
    if init_method not in (None, "env://"):
        raise ParallelError(
            f"init_process_group(init_method={init_method!r}): the launcher chooses the rendezvous; leave it out"
        )
    install()
    dist.init_process_group(NAME, timeout=timeout, **others)


def is_initialized() -> bool:
    """Return True if this rank has joined the others."""
    return dist.is_initialized()


def get_world_size(group: Any = group.WORLD) -> int:
    """Return the number of ranks."""
    return dist.get_world_size(group)


def get_rank(group: Any = group.WORLD) -> int:
    """Return this process's number among the ranks."""
    return dist.get_rank(group)


def get_local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return int(os.environ[RankVariable.LOCAL_RANK])


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Combine the ranks' tensors, in place on each; with `async_op` return a handle with `wait`."""
    return dist.all_reduce(tensor, op, group, async_op)


def broadcast(tensor: torch.Tensor, src: int = 0, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Give every rank the tensor of rank `src`, in place."""
    return dist.broadcast(tensor, src, group, async_op)


def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = group.WORLD, async_op: bool = False
) -> Any:
    """Fill `tensor_list` with the tensors of all ranks, in their order."""
    return dist.all_gather(tensor_list, tensor, group, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = group.WORLD,
    async_op: bool = False,
) -> Any:
    """Send each rank its part of `input`, and collect the parts from all ranks in `output`."""
    return dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)


def barrier(group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Wait until all ranks have called it."""
    return dist.barrier(group, async_op)
