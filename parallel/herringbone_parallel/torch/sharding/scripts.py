"""Small helpers of `torch.sagemaker` that AWS's example scripts import."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from herringbone_parallel.torch.sharding import state as states


def get_logger(name: str = "torch.sagemaker") -> logging.Logger:
    """Return the logger of the library."""
    return logging.getLogger(name)


@contextmanager
def timeit(condition: bool = True, message: str = "", rank: int | None = None, logger: Any = None) -> Iterator[None]:
    """Log the seconds that the `with` block took, on rank 0."""
    begin = time.perf_counter()
    yield
    if condition and (dist.get_rank() if rank is None else rank) == 0:
        (logger or get_logger()).info("%s: %.2f s", message, time.perf_counter() - begin)


def get_global_ranks(group: dist.ProcessGroup) -> list[int]:
    """Return the global ranks of a process group, in the order of the group."""
    return dist.get_process_group_ranks(group)


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale the gradients of a sharded model so that their norm is at most `max_norm`; return the norm before.

    It is the norm over all ranks, as in one process.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if isinstance(model, FullyShardedDataParallel):
        norm = model.clip_grad_norm_(max_norm, norm_type)
    else:
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def empty_module_params(module: nn.Module, device: torch.device | None = None, recurse: bool = False) -> nn.Module:
    """Give a module parameters without values, on the device, and those of its children too with `recurse`."""
    device = states.get().device if device is None else device
    for owner in module.modules() if recurse else (module,):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if parameter.is_meta:
                empty = torch.empty_like(parameter, device=device)
                owner._parameters[name] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return module


def move_buffers_to_device(module: nn.Module, device: torch.device, recurse: bool = False) -> nn.Module:
    """Move a module's buffers to the device, and those of its children too with `recurse`."""
    for owner in module.modules() if recurse else (module,):
        for name, buffer in list(owner.named_buffers(recurse=False)):
            owner._buffers[name] = buffer.to(device)
    return module


def last_integer(name: str) -> int:
    """Return the last number in the name of a checkpoint, by which the oldest one is found; -1 without any.

    >>> last_integer("llama-200steps")
    200
    """
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1


def limit_num_subdirs(
    folder: str,
    count: int,
    sort_fn: Callable[[str], Any] = last_integer,
    regex: str | None = None,
    log: bool = False,
) -> None:
    """Delete the oldest folders whose names match `regex`, so that `count` are left; with `count` 0 it deletes none.

    `log` is true on the one rank that deletes.
    """
    if count <= 0 or not log or not Path(folder).is_dir():
        return
    folders = [path for path in Path(folder).iterdir() if path.is_dir() and not path.is_symlink()]
    # A hidden one may be a checkpoint that is being written.
    names = [path.name for path in folders if not path.name.startswith(".")]
    names = sorted((name for name in names if regex is None or re.match(regex, name)), key=sort_fn)
    for name in names[: max(0, len(names) - count)]:
        get_logger().info("deleting the checkpoint %s, which is older than the newest %d", name, count)
        shutil.rmtree(Path(folder) / name)
