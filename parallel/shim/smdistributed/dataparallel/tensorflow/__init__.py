"""Re-exports Herringbone's data-parallel library under AWS's import path, `smdistributed.dataparallel.tensorflow`."""

from herringbone_parallel.tensorflow.data_parallel.api import *  # noqa: F403
from herringbone_parallel.tensorflow.data_parallel.api import __all__ as __all__
