"""AWS's import path of `get_logger`."""

from herringbone_parallel.torch.sharding.scripts import get_logger  # noqa: F401
