"""The ranks of a data-parallel job, or one process by itself: the same script on any number of hosts."""

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

# Torch 2.13 has a new name for it.
_NAMES = inspect.signature(DistributedDataParallel).parameters
_SYNCHRONIZE_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"


@dataclass(frozen=True)
class World:
    """Which of how many ranks this is, and what it computes on."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def is_launched(self) -> bool:
        """Whether this is a rank of a job, though it may be the only one."""
        return dist.is_initialized()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Move the model to the device, and have its gradients averaged over the ranks, whose models must be equal."""
        require_equal(model)
        model.to(self.device)
        if not self.is_launched:
            return model
        # Each rank keeps BatchNorm's statistics of its own examples; the script averages them before it evaluates.
        return DistributedDataParallel(model, **{_SYNCHRONIZE_BUFFERS: False})

    def total(self, *values: Any) -> list[float]:
        """Return the sum of each value over the ranks."""
        together = torch.tensor([float(value) for value in values], dtype=torch.float64)
        if self.is_launched:
            dist.all_reduce(together)
        return together.tolist()

    def gather(self, text: str) -> list[str]:
        """Return the line of text of every rank, on every rank."""
        if not self.is_launched:
            return [text]
        mine = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        dist.all_gather(lengths, torch.tensor([len(mine)]))
        longest = max(int(length) for length in lengths)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.ranks)]
        dist.all_gather(parts, nn.functional.pad(mine, (0, longest - len(mine))))
        return [part.numpy().tobytes().partition(b"\n")[0].decode() for part in parts]


def join() -> World:
    """Meet the other ranks, where this process is one."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  makes the backend known

        dist.init_process_group("smddp")
    return World(rank, ranks, device)


def leave() -> None:
    """Part from the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


def save(model: nn.Module, folder: Path) -> None:
    """Write the model's weights as `model.pt`."""
    torch.save(model.state_dict(), folder / "model.pt")
