"""The ranks of one host, which sum among themselves first, so that the host's sum crosses the network once.

rank 0 of 2   |a0|a1|  --scatter-->  |a0+b0|  --network-->  |s0|  --gather-->  |s0|s1|
rank 1 of 2   |b0|b1|                |a1+b1|                |s1|               |s0|s1|
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, ReduceScatterOptions

_SCATTER, _GATHER = ReduceScatterOptions(), AllgatherOptions()


class Inside:
    """Scatters and gathers over two groups of the host's ranks, NCCL's where the tensors are on devices.

        inside = Inside(scatters, gathers, size=8)
        part = inside.scatter(bucket)              # this rank's eighth of the host's sum, padded
        inside.gather(part, bucket)

    Two groups, as ranks do not begin gathers, which wait for the network, between the same two scatters. Sums are made
    in the tensor's own type, as the groups make them. Never run on NCCL: no CUDA device was there.
    """

    def __init__(self, scatters: Any, gathers: Any, size: int) -> None:
        self._scatters, self._gathers = scatters, gathers
        self.size = size

    def scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice of the sum over the host's ranks; all are as long, the last padded with zeros."""
        flat = self._flat(tensor)
        part = flat.new_empty(flat.numel() // self.size)
        self._scatters._reduce_scatter_base(part, flat, _SCATTER).wait()
        return part

    def gather(self, part: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put all ranks' slices together, in the place of the tensor that was scattered."""
        fits = tensor.is_contiguous() and tensor.numel() == part.numel() * self.size
        flat = tensor.detach().view(-1) if fits else part.new_empty(part.numel() * self.size)
        self._gathers._allgather_base(flat, part, _GATHER).wait()
        if not fits:
            tensor.detach().copy_(flat[: tensor.numel()].view(tensor.shape))

    def shutdown(self) -> None:
        for group in (self._scatters, self._gathers):
            if hasattr(group, "shutdown"):
                group.shutdown()

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.detach().reshape(-1)
        missing = -flat.numel() % self.size
        return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
