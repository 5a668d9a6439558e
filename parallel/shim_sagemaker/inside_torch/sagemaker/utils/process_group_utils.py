"""Ask a process group for its ranks."""

from herringbone_parallel.torch.sharding.scripts import get_global_ranks  # noqa: F401
