"""`smdistributed.modelparallel.torch.patches.checkpoint` under AWS's import path."""

from herringbone_parallel.torch.model_parallel.activation_checkpointing import checkpoint, checkpoint_sequential  # noqa: F401
