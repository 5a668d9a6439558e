"""AWS's other import path of `state`."""

from herringbone_parallel.torch.sharding.numbers import state  # noqa: F401
