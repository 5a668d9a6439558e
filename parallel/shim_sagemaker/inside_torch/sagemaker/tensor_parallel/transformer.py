"""AWS's import path of `TransformerLayer`."""

from herringbone_parallel.torch.sharding.layers import TransformerLayer  # noqa: F401
