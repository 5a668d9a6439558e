"""What ranks give each other before training: parameters, the state of optimizers, any object."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from herringbone_parallel.reduce import all_gather
from herringbone_parallel.reduce import broadcast as _broadcast
from herringbone_parallel.torch.data_parallel.agreement import are_equal
from herringbone_parallel.torch.horovod.ranks import engine


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0) -> None:
    """Give every rank the tensors of rank `root_rank`, in place, unless all have the same already.

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    named = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    if are_equal(engine(), tensors):
        return
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for _, tensor in tensors]
    joined = torch.cat(parts).numpy()
    _broadcast(engine(), joined, root_rank)
    start = 0
    with torch.no_grad():
        for (_, tensor), part in zip(tensors, parts, strict=True):
            piece = torch.from_numpy(joined[start : start + len(part)].copy())
            tensor.copy_(piece.view(tensor.dtype).view(tensor.shape))
            start += len(part)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give every rank's optimizer the state of the one of rank `root_rank`, its options included."""
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if engine().rank != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:  # noqa: ARG001
    """Return the root's object, of any type that pickle takes; ranks of one job trust each other."""
    is_root = engine().rank == root_rank
    data = np.frombuffer(pickle.dumps(obj), np.uint8).copy() if is_root else np.empty(0, np.uint8)
    length = np.array([len(data)], np.int64)
    _broadcast(engine(), length, root_rank)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    _broadcast(engine(), data, root_rank)
    return obj if is_root else pickle.loads(data.tobytes())  # noqa: S301  same trust domain


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ARG001
    """Return the objects of all ranks; ranks of one job trust each other."""
    return [pickle.loads(data) for data in all_gather(engine(), pickle.dumps(obj))]  # noqa: S301  same trust domain
