"""`import smdistributed.modelparallel.torch as smp` in a launched rank: Herringbone's open library."""

from herringbone_parallel.torch import *  # noqa: F403
from herringbone_parallel.torch import __all__, __getattr__  # noqa: F401
