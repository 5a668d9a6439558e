"""`smdistributed.dataparallel.torch.distributed`, the surface of SMDDP v1, under AWS's import path."""

from herringbone_parallel.torch.data_parallel.distributed import *  # noqa: F403
