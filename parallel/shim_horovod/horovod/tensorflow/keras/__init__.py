"""Re-exports Horovod's names for `import horovod.tensorflow.keras as hvd`, in a rank without the real package."""

from herringbone_parallel.tensorflow.horovod.keras import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.keras import __all__ as __all__
