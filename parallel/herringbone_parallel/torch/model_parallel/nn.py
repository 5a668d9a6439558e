"""`smp.nn`: the layers of SMP v1 that are torch's own. Its tensor-parallel layers are not in this release."""

from __future__ import annotations

from typing import Any

from torch.nn import LayerNorm

from herringbone_parallel.torch.model_parallel.activation_checkpointing import (
    checkpoint,
    checkpoint_sequential,
    set_activation_checkpointing,
)
from herringbone_parallel.torch.model_parallel.unavailable import LAYERS, refuse

__all__ = ["FusedLayerNorm", "checkpoint", "checkpoint_sequential", "set_activation_checkpointing"]

# torch's LayerNorm is a fused kernel as well, and takes the same arguments.
FusedLayerNorm = LayerNorm


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        refuse(f"smp.nn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
