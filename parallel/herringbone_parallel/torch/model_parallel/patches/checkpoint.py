"""`smp.patches.checkpoint`: SMP v1's path to activation checkpointing."""

from herringbone_parallel.torch.model_parallel.activation_checkpointing import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
