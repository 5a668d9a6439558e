"""`smp.patches`: where SMP v1 keeps `checkpoint`."""

from herringbone_parallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
