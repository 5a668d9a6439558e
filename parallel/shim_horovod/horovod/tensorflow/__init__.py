"""`import horovod.tensorflow as hvd` in a launched rank, where the real package is not installed.

The folder above has no `__init__.py`: a real `horovod` package, wherever it lies, comes before it.
"""

from herringbone_parallel.tensorflow.horovod.api import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.api import __all__ as __all__
