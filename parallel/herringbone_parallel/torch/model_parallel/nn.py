"""`smp.nn`: the layers of SMP v1, those that are torch's own and those that the ranks of a tensor group share."""

from __future__ import annotations

from typing import Any

from torch.nn import LayerNorm

from herringbone_parallel.torch.model_parallel.activation_checkpointing import (
    checkpoint,
    checkpoint_sequential,
    set_activation_checkpointing,
)
from herringbone_parallel.torch.model_parallel.tensor import huggingface
from herringbone_parallel.torch.model_parallel.tensor.layers import (
    DistributedAttentionLayer,
    DistributedEmbedding,
    DistributedLinear,
    DistributedModule,
    DistributedTransformerOutputLayer,
)
from herringbone_parallel.torch.model_parallel.tensor.transformer import (
    DistributedTransformer,
    DistributedTransformerLayer,
    DistributedTransformerLMHead,
)
from herringbone_parallel.torch.model_parallel.unavailable import LAYERS, refuse

__all__ = [
    "DistributedAttentionLayer", "DistributedEmbedding", "DistributedLinear", "DistributedModule",
    "DistributedTransformer", "DistributedTransformerLMHead", "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer", "FusedLayerNorm", "checkpoint", "checkpoint_sequential", "huggingface",
    "set_activation_checkpointing",
]  # fmt: skip

# torch's LayerNorm is a fused kernel as well, and takes the same arguments.
FusedLayerNorm = LayerNorm


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        refuse(f"smp.nn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
