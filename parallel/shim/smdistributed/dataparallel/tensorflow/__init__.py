"""AWS's import path for Herringbone's open data-parallel library."""

from herringbone_parallel.tensorflow.data_parallel.api import *  # noqa: F403
from herringbone_parallel.tensorflow.data_parallel.api import __all__ as __all__
