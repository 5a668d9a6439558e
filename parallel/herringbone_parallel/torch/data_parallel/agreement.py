"""Checks that all ranks have the same parameters, and whether those have the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from herringbone_parallel.reduce.collectives import agree, all_gather
from herringbone_parallel.reduce.engine import Engine

Named = Iterable[tuple[str, torch.Tensor]]


def require_alike(engine: Engine, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `ParallelError` on all ranks if their parameters differ, naming the first one that does."""
    agree(engine, "the model's parameters", description(parameters))


def description(parameters: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Return one line per parameter: its name, shape and type, and a note if it is not trained. Pure.

    >>> description([("weight", nn.Parameter(torch.zeros(2, 3)))])
    'weight: 2x3 float32'
    """
    return "\n".join(
        f"{name}: {'x'.join(map(str, parameter.shape)) or 'scalar'} {str(parameter.dtype).removeprefix('torch.')}"
        f"{'' if parameter.requires_grad else ', not trained'}"
        for name, parameter in parameters
    )


def are_equal(engine: Engine, tensors: Named) -> bool:
    """Return True if all ranks have the same values, bit by bit; then nothing needs to be broadcast."""
    return len(set(all_gather(engine, digest(tensors)))) == 1


def digest(tensors: Named) -> bytes:
    """Return a digest of 16 bytes of the tensors' names, shapes, types and values. Pure."""
    result = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        result.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        if tensor.layout is torch.strided:
            # Viewed as bytes, because numpy has no bfloat16.
            dense = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
            result.update(dense.numpy().data)
    return result.digest()
