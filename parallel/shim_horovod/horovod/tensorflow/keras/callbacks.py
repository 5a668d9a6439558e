"""Re-exports the callbacks for `import horovod.tensorflow.keras.callbacks`."""

from herringbone_parallel.tensorflow.horovod.callbacks import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.callbacks import __all__ as __all__
