"""`smp.nn`: the layers of SMP v1, those that are torch's own and those that the ranks of a tensor group share."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.nn import LayerNorm

from herringbone_contract.errors import ParallelError
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

__all__ = [
    "DistributedAttentionLayer", "DistributedEmbedding", "DistributedLinear", "DistributedModule",
    "DistributedTransformer", "DistributedTransformerLMHead", "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer", "FusedLayerNorm", "checkpoint", "checkpoint_sequential", "huggingface",
    "set_activation_checkpointing",
]  # fmt: skip

# torch's LayerNorm is a fused kernel as well, and takes the same arguments.
FusedLayerNorm = LayerNorm


def refuse(name: str) -> NoReturn:
    """Raise the `ParallelError` for a name of SMP v1 that is not available."""
    raise ParallelError(
        f"{name} is not available: this release has no fused optimizers and no attention kernels of its own. Take any"
        " torch.optim optimizer (torch's AdamW has fused=True), and torch.nn.functional.scaled_dot_product_attention,"
        " which smp.nn.DistributedAttentionLayer uses"
    )


def __getattr__(name: str) -> Any:
    if name == "FlashAttentionLayer":
        refuse(f"smp.nn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
