"""Delete old checkpoints, by AWS's names."""

from herringbone_parallel.torch.sharding.scripts import last_integer as SORT_BY_LAST_INT  # noqa: F401, N812
from herringbone_parallel.torch.sharding.scripts import limit_num_subdirs  # noqa: F401
