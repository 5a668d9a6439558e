"""Equal weights on all ranks without a broadcast: each rank creates them from one seed, and digests are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError

_BYTES = 8


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers from `seed` in the `with` block, and restore the generators afterwards.

        with seeded(1):
            model = ResNet()            # the same on every rank
        require_equal(model)

    It covers torch's generators of the processor and of the current CUDA device. Seeds that differ between ranks, for
    dropout or augmentation, stay in effect after the block.
    """
    # By default, `fork_rng` would save the generators of all devices.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def require_equal(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raise `ParallelError` on all ranks if their parameters or buffers differ in any bit, naming the first that does.

    The ranks exchange eight bytes per tensor. A lone process checks nothing.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return
    tensors = model.state_dict()
    digests = torch.tensor([len(tensors), *(_number(name, tensor) for name, tensor in tensors.items())])
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    # The counts first: a gather needs tensors of the same size on all ranks.
    counts = _gather(digests[:1].to(device), group)
    if len({int(count) for count in counts}) > 1:
        raise ParallelError(f"the ranks' models have {[int(count) for count in counts]} tensors, in the order of ranks")
    all_digests = torch.stack(_gather(digests.to(device), group))
    differs = (all_digests != all_digests[0]).any(dim=0)
    if not differs.any():
        return
    # The first element is the number of tensors.
    position = int(differs.nonzero()[0])
    name = list(tensors)[position - 1]
    others = [rank for rank, digest in enumerate(all_digests[:, position]) if digest != all_digests[0, position]]
    raise ParallelError(
        f"the ranks do not start from the same weights: {name} on rank {', '.join(map(str, others))} is not rank 0's."
        " Make the model inside `with seeded(seed)`, with the same settings, and load the same checkpoint on every rank"
    )


def _number(name: str, tensor: torch.Tensor) -> int:
    """Return a digest of a tensor's name, shape, type and values as a number. Pure."""
    result = hashlib.blake2b(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode(), digest_size=_BYTES)
    result.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    return int.from_bytes(result.digest(), "little", signed=True)


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor, group=group)
    return gathered
