"""`import horovod.tensorflow.keras as hvd` in a launched rank, where the real package is not installed."""

from herringbone_parallel.tensorflow.horovod.keras import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.keras import __all__ as __all__
