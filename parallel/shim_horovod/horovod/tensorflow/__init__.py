"""Re-exports Horovod's names for `import horovod.tensorflow as hvd`, in a rank without the real package.

The folder above has no `__init__.py`, so Python prefers a real `horovod` package wherever it is installed.
"""

from herringbone_parallel.reduce.horovod import refusing
from herringbone_parallel.tensorflow.horovod.api import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.api import __all__ as __all__
from herringbone_parallel.tensorflow.keras_compat.api import activate

__getattr__ = refusing("horovod.tensorflow")
# Horovod's last scripts were written for TensorFlow 2.3 to 2.6.
activate()
