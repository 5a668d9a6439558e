"""`smdistributed.dataparallel.torch.parallel`, the surface of SMDDP v1, under AWS's import path."""

from herringbone_parallel.torch.data_parallel.parallel import DistributedDataParallel  # noqa: F401
