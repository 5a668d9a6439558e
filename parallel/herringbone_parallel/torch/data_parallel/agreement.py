"""What ranks must have alike before they add up gradients: the parameters, and, for the same result, their values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from herringbone_parallel.reduce.collectives import agree, all_gather
from herringbone_parallel.reduce.engine import Engine

Named = Iterable[tuple[str, torch.Tensor]]


def require_alike(engine: Engine, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `ParallelError` on all ranks, naming the first parameter that two of them do not have alike."""
    agree(engine, "the model's parameters", description(parameters))


def description(parameters: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Return a line for each parameter: name, shape, type, whether it is trained. Pure.

    >>> description([("weight", nn.Parameter(torch.zeros(2, 3)))])
    'weight: 2x3 float32'
    """
    return "\n".join(
        f"{name}: {'x'.join(map(str, parameter.shape)) or 'scalar'} {str(parameter.dtype).removeprefix('torch.')}"
        f"{'' if parameter.requires_grad else ', not trained'}"
        for name, parameter in parameters
    )


def are_equal(engine: Engine, tensors: Named) -> bool:
    """Say whether all ranks hold the same values, bit by bit: then there is nothing to broadcast."""
    return len(set(all_gather(engine, digest(tensors)))) == 1


def digest(tensors: Named) -> bytes:
    """Return 16 bytes that stand for names, shapes, types and values of the tensors. Pure."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        if tensor.layout is torch.strided:
            dense = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
            found.update(dense.numpy().data)
    return found.digest()
