"""`smp.nn`: of SMP v1's layers those that are torch's own; the tensor-parallel ones are not in this release."""

from __future__ import annotations

from typing import Any

from torch.nn import LayerNorm

from herringbone_parallel.torch.model_parallel.runtime.activation_checkpointing import (
    checkpoint,
    checkpoint_sequential,
    set_activation_checkpointing,
)
from herringbone_parallel.torch.model_parallel.unavailable import LAYERS, refuse

__all__ = ["FusedLayerNorm", "checkpoint", "checkpoint_sequential", "set_activation_checkpointing"]

# torch's LayerNorm is one kernel too, and takes the same arguments.
FusedLayerNorm = LayerNorm


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        refuse(f"smp.nn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
