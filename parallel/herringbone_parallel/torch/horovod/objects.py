"""Broadcasts parameters and the state of optimizers before a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from herringbone_parallel.reduce.collectives import broadcast as _broadcast
from herringbone_parallel.reduce.horovod import broadcast_object, engine
from herringbone_parallel.torch.data_parallel.agreement import are_equal


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0) -> None:
    """Give every rank the tensors of rank `root_rank`, in place, unless all ranks have the same values already.

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    named = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    # Digests cost one small gather, a broadcast all the bytes.
    if are_equal(engine(), tensors):
        return
    # One broadcast of all bytes instead of one per tensor.
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for _, tensor in tensors]
    joined = torch.cat(parts).numpy()
    _broadcast(engine(), joined, root_rank)
    start = 0
    with torch.no_grad():
        for (_, tensor), part in zip(tensors, parts, strict=True):
            # A copy, because a slice of bytes may start at an address that the type does not allow.
            piece = torch.from_numpy(joined[start : start + len(part)].copy())
            tensor.copy_(piece.view(tensor.dtype).view(tensor.shape))
            start += len(part)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give every rank's optimizer the state and the options of rank `root_rank`'s optimizer."""
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if engine().rank != root_rank:
        optimizer.load_state_dict(state)
