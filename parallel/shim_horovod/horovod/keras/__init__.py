"""Re-exports Horovod's names for `import horovod.keras as hvd`, in a rank without the real package."""

from herringbone_parallel.reduce.horovod import refusing
from herringbone_parallel.tensorflow.horovod.keras import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.keras import __all__ as __all__
from herringbone_parallel.tensorflow.keras_compat.api import activate

__getattr__ = refusing("horovod.keras")
# Horovod's last scripts were written for TensorFlow 2.3 to 2.6.
activate()
