"""Buffers of a model that each rank changes by itself, such as the statistics of BatchNorm.

torch broadcasts them in a `DistributedDataParallel` alone, and not with `broadcast_buffers=False`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from herringbone_parallel.torch.position.random_state import Packed, packed, unpacked

# Larger ones are tables, which no rank changes.
_MOST = 1 << 16


def take(model: nn.Module) -> dict[str, Packed]:
    """Return this rank's own buffers by name."""
    return {name: packed(buffer) for name, buffer in _own(model).items()}


def put(model: nn.Module, saved: dict[str, Packed]) -> None:
    """Let the buffers go on from saved ones."""
    for name, buffer in _own(model).items():
        if name in saved:
            buffer.copy_(unpacked(saved[name]))


def _own(model: nn.Module) -> dict[str, torch.Tensor]:
    kept = model.state_dict().keys()
    return {
        name: buffer.detach()
        for name, buffer in model.named_buffers()
        if name in kept and not isinstance(buffer, DTensor) and not buffer.is_meta and buffer.numel() <= _MOST
    }
