"""`import smdistributed.modelparallel.tensorflow as smp` in a launched rank: Herringbone's open library."""

from herringbone_parallel.tensorflow import *  # noqa: F403
from herringbone_parallel.tensorflow import __all__ as __all__
