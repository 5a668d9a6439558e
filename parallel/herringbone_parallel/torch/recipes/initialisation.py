"""The same weights on all ranks without sending them: each makes them from the same seed, and a digest is compared."""

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
    """Draw random numbers from `seed` in the `with` block, and go on afterwards as if there had been none.

        with seeded(1):
            model = ResNet()            # the same on every rank
        require_equal(model)

    Torch's generators of the processor and of the current CUDA device: a script whose ranks have seeds of their own,
    for dropout or augmentation, keeps them.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def require_equal(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raise `ParallelError` on all ranks, with the first name, where their parameters or buffers are not the same bits.

    Eight bytes a tensor are exchanged. Nothing is asked of one process alone.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return
    tensors = model.state_dict()
    mine = torch.tensor([len(tensors), *(_number(name, tensor) for name, tensor in tensors.items())])
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    counts = _gather(mine[:1].to(device), group)
    if len({int(count) for count in counts}) > 1:
        raise ParallelError(f"the ranks' models have {[int(count) for count in counts]} tensors, in the order of ranks")
    everyones = torch.stack(_gather(mine.to(device), group))
    differs = (everyones != everyones[0]).any(dim=0)
    if not differs.any():
        return
    place = int(differs.nonzero()[0])
    name = list(tensors)[place - 1]
    others = [rank for rank, digest in enumerate(everyones[:, place]) if digest != everyones[0, place]]
    raise ParallelError(
        f"the ranks do not start from the same weights: {name} on rank {', '.join(map(str, others))} is not rank 0's."
        " Make the model inside `with seeded(seed)`, with the same settings, and load the same checkpoint on every rank"
    )


def _number(name: str, tensor: torch.Tensor) -> int:
    """Return a number that stands for a tensor's name, shape, type and values. Pure."""
    found = hashlib.blake2b(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode(), digest_size=_BYTES)
    found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    return int.from_bytes(found.digest(), "little", signed=True)


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor, group=group)
    return gathered
