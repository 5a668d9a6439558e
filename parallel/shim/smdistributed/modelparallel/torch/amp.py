"""`smdistributed.modelparallel.torch.amp` under AWS's import path."""

from herringbone_parallel.torch.amp import GradScaler  # noqa: F401
