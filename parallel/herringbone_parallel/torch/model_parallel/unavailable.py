"""Names of SMP v1 that this release lacks: using one raises an error with the alternatives, and no AttributeError."""

from __future__ import annotations

from typing import NoReturn

from herringbone_contract.errors import ParallelError

NAMES = frozenset(
    {"tensor_parallelism", "set_tensor_parallelism", "tp_register", "tp_register_with_module", "optimizers"}
)
LAYERS = frozenset(
    {
        "DistributedLinear",
        "DistributedEmbedding",
        "DistributedTransformerLMHead",
        "DistributedTransformer",
        "DistributedTransformerLayer",
        "DistributedAttentionLayer",
        "DistributedTransformerOutputLayer",
        "FlashAttentionLayer",
        "huggingface",
    }
)


def refuse(name: str) -> NoReturn:
    """Raise the `ParallelError` for a name of SMP v1 that is not available."""
    raise ParallelError(
        f"{name} is not available: there is no tensor parallelism and there are no fused optimizers in this"
        " release. What there is: any torch.nn layer and torch.optim optimizer, split over the ranks by"
        " smp.DistributedModel, smp.partition and smp.set_partition; smp.set_activation_checkpointing for memory."
    )
