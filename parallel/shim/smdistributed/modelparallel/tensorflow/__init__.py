"""Re-exports Herringbone's model-parallel library under AWS's import path, `smdistributed.modelparallel.tensorflow`."""

from herringbone_parallel.tensorflow.keras_compat.api import activate
from herringbone_parallel.tensorflow.model_parallel.api import *  # noqa: F403
from herringbone_parallel.tensorflow.model_parallel.api import __all__ as __all__

# Scripts under this name were written for TensorFlow 2.3 to 2.6.
activate()
