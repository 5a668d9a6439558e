"""Re-exports the callbacks for `import horovod.keras.callbacks`."""

from herringbone_parallel.tensorflow.horovod.callbacks import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.callbacks import __all__ as __all__
