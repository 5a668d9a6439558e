"""Names of SMP v1 that this release lacks: using one raises an error with the alternatives, and no AttributeError."""

from __future__ import annotations

from typing import NoReturn

from herringbone_contract.errors import ParallelError

NAMES = frozenset({"optimizers"})
LAYERS = frozenset({"FlashAttentionLayer"})


def refuse(name: str) -> NoReturn:
    """Raise the `ParallelError` for a name of SMP v1 that is not available."""
    raise ParallelError(
        f"{name} is not available: this release has no fused optimizers and no attention kernels of its own. Take any"
        " torch.optim optimizer (torch's AdamW has fused=True), and torch.nn.functional.scaled_dot_product_attention,"
        " which smp.nn.DistributedAttentionLayer uses"
    )
