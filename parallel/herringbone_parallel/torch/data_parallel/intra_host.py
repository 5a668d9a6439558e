"""Sums among the ranks of one host, so that the host's sum crosses the network only once.

rank 0 of 2   |a0|a1|  --scatter-->  |a0+b0|  --network-->  |s0|  --gather-->  |s0|s1|
rank 1 of 2   |b0|b1|                |a1+b1|                |s1|               |s0|s1|
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, ReduceScatterOptions

_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_SCATTER, _GATHER = ReduceScatterOptions(), AllgatherOptions()


class IntraHost:
    """Scatters and gathers among the ranks of a host, over two process groups: NCCL's for tensors on devices.

        intra_host = IntraHost(scatters, gathers, size=8)
        part = intra_host.scatter(bucket)              # this rank's eighth of the host's sum, padded
        intra_host.gather(part, bucket)

    Collectives of one group run in one order on all ranks. A gather waits for the network, and ranks start it at
    different points between two scatters, so gathers need a group of their own. fp16 and bf16 are summed in fp32, and
    slices of their sums are fp32 until they are gathered. Never run on NCCL: no CUDA device was available.
    """

    def __init__(self, scatters: Any, gathers: Any, size: int) -> None:
        self._scatters, self._gathers = scatters, gathers
        self.size = size

    def scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice of the sum over the host's ranks. All slices have one length, padded with zeros."""
        flat = self._flat(tensor)
        # A group sums in the tensor's own type, and 16 bits overflow: the sum of two times 40,000 is inf in fp16.
        flat = flat.float() if flat.dtype in _SIXTEEN_BITS else flat
        part = flat.new_empty(flat.numel() // self.size)
        self._scatters._reduce_scatter_base(part, flat, _SCATTER).wait()
        return part

    def gather(self, part: torch.Tensor, tensor: torch.Tensor) -> None:
        """Replace a tensor that was scattered by the slices of all ranks."""
        # The last sum is rounded, once, to the type of the tensor.
        part = part.to(tensor.dtype)
        # If the slices fill the tensor exactly, gather into it; padding or gaps need a tensor in between.
        fits = tensor.is_contiguous() and tensor.numel() == part.numel() * self.size
        flat = tensor.detach().view(-1) if fits else part.new_empty(part.numel() * self.size)
        self._gathers._allgather_base(flat, part, _GATHER).wait()
        if not fits:
            tensor.detach().copy_(flat[: tensor.numel()].view(tensor.shape))

    def shutdown(self) -> None:
        """End both groups."""
        for group in (self._scatters, self._gathers):
            # Not every release of torch gives all groups a `shutdown`.
            if hasattr(group, "shutdown"):
                group.shutdown()

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.detach().reshape(-1)
        missing = -flat.numel() % self.size
        return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
