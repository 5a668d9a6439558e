"""The ranks of a data-parallel job, or a single process: the same script runs on any number of hosts."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.torch.recipes.api import require_equal

# Torch 2.13 renames the argument.
_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
_SYNCHRONIZE_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"


@dataclass(frozen=True)
class World:
    """This rank's number, the number of ranks, and this rank's device."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def is_launched(self) -> bool:
        """True for a rank of a job, also for a job's only rank. False for a process without a launcher."""
        return dist.is_initialized()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Move the model to the device and average its gradients over the ranks. Raises if ranks' models differ."""
        require_equal(model)
        model.to(self.device)
        if not self.is_launched:
            return model
        # BatchNorm's statistics stay per rank: the script averages them before each evaluation, so that DDP need not
        # send them in every forward.
        return DistributedDataParallel(model, **{_SYNCHRONIZE_BUFFERS: False})

    def total(self, *values: Any) -> list[float]:
        """Return the sum of each value over the ranks."""
        totals = torch.tensor([float(value) for value in values], dtype=torch.float64)
        if self.is_launched:
            dist.all_reduce(totals)
        return totals.tolist()

    def gather(self, text: str) -> list[str]:
        """Return all ranks' lines of text, on every rank."""
        if not self.is_launched:
            return [text]
        # Ranks gather tensors of one size: pad to the longest line. The line break marks the end of the text.
        line = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        dist.all_gather(lengths, torch.tensor([len(line)]))
        longest = max(int(length) for length in lengths)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.ranks)]
        dist.all_gather(parts, nn.functional.pad(line, (0, longest - len(line))))
        return [part.numpy().tobytes().partition(b"\n")[0].decode() for part in parts]


def join() -> World:
    """Join the other ranks, if a launcher started this process."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

        dist.init_process_group("smddp")
    return World(rank, ranks, device)


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def save(model: nn.Module, folder: Path) -> None:
    """Write the model's weights to `model.pt`."""
    torch.save(model.state_dict(), folder / "model.pt")
