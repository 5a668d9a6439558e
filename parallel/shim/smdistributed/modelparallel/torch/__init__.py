"""`import smdistributed.modelparallel.torch as smp` in a launched rank: Herringbone's open library."""

from herringbone_parallel.torch.model_parallel.api import *  # noqa: F403
from herringbone_parallel.torch.model_parallel.api import __all__, __getattr__  # noqa: F401
