"""`smp.patches`: SMP v1's package for `checkpoint`."""

from herringbone_parallel.torch.model_parallel.patches import checkpoint

__all__ = ["checkpoint"]
