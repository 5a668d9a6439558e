"""SMDDP v1's functions, under AWS's import path `smdistributed.dataparallel.torch.distributed`."""

from herringbone_parallel.torch.data_parallel.distributed import *  # noqa: F403
