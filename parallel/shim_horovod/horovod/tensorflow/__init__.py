"""Re-exports Horovod's names for `import horovod.tensorflow as hvd`, in a rank without the real package.

The folder above has no `__init__.py`, so Python prefers a real `horovod` package wherever it is installed.
"""

from herringbone_parallel.tensorflow.horovod.api import *  # noqa: F403
from herringbone_parallel.tensorflow.horovod.api import __all__ as __all__
