"""AWS's import path of `MoEConfig`."""

from herringbone_parallel.torch.sharding.unavailable import MoEConfig  # noqa: F401
