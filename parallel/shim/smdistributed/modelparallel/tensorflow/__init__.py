"""`import smdistributed.modelparallel.tensorflow as smp` in a launched rank: Herringbone's open library."""

from herringbone_parallel.tensorflow import *  # noqa: F403
from herringbone_parallel.tensorflow import __all__ as __all__
from herringbone_parallel.tensorflow.keras_compat import activate

# Scripts under this name were written for TensorFlow 2.3 to 2.6.
activate()
