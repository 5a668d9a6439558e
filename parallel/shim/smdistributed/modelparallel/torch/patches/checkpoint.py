"""`smdistributed.modelparallel.torch.patches.checkpoint` under AWS's import path."""

from herringbone_parallel.torch.checkpointing import checkpoint, checkpoint_sequential  # noqa: F401
