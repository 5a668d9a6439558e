"""Buffers of a model that each rank changes by itself, such as the statistics of BatchNorm.

torch broadcasts them in a `DistributedDataParallel` alone, and not with `broadcast_buffers=False`.
"""

from __future__ import annotations

import msgspec
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from herringbone_parallel.torch.position.random_state import to_bytes

# Larger ones are tables, which no rank changes.
_MOST = 1 << 16


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """A buffer's type, shape and bytes."""

    dtype: str
    shape: list[int]
    content: bytes


def take(model: nn.Module) -> dict[str, Buffer]:
    """Return this rank's own buffers by name."""
    return {name: _packed(buffer) for name, buffer in _own(model).items()}


def put(model: nn.Module, saved: dict[str, Buffer]) -> None:
    """Let the buffers go on from saved ones."""
    for name, buffer in _own(model).items():
        if (one := saved.get(name)) is not None and one.content:
            value = torch.frombuffer(bytearray(one.content), dtype=getattr(torch, one.dtype))
            buffer.copy_(value.reshape(one.shape))


def _own(model: nn.Module) -> dict[str, torch.Tensor]:
    kept = model.state_dict().keys()
    return {
        name: buffer.detach()
        for name, buffer in model.named_buffers()
        if name in kept and not isinstance(buffer, DTensor) and not buffer.is_meta and buffer.numel() <= _MOST
    }


def _packed(buffer: torch.Tensor) -> Buffer:
    content = to_bytes(buffer.contiguous().reshape(-1).view(torch.uint8)) if buffer.numel() else b""
    return Buffer(str(buffer.dtype).removeprefix("torch."), list(buffer.shape), content)
