"""SMDDP v1's model wrapper, under AWS's import path `smdistributed.dataparallel.torch.parallel.distributed`."""

from herringbone_parallel.torch.data_parallel.parallel import DistributedDataParallel  # noqa: F401
