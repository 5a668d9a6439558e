"""Registers the backend "smddp" of torch.distributed when it is imported, as AWS's library does."""

from herringbone_parallel.torch.data_parallel.api import install

install()
