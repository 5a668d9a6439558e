"""`smdistributed.modelparallel.torch.amp` under AWS's import path."""

from herringbone_parallel.torch.model_parallel.amp import GradScaler  # noqa: F401
