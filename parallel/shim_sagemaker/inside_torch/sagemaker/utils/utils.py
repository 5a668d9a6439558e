"""Measure the time of a part of a script."""

from herringbone_parallel.torch.sharding.scripts import timeit  # noqa: F401
