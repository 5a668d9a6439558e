"""`smp.patches`: where SMP v1 keeps `checkpoint`."""

from herringbone_parallel.torch.model_parallel.patches import checkpoint

__all__ = ["checkpoint"]
