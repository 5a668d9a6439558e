"""Importing this makes `torch.distributed.init_process_group("smddp")` possible, as AWS's library does."""

from herringbone_parallel.torch.data_parallel.api import install

install()
