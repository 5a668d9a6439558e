"""Horovod's import path `horovod.torch` for launched ranks without the real package.

The parent folder has no `__init__.py`, so a real `horovod` package anywhere on the path takes precedence.
"""

from herringbone_parallel.reduce.horovod import refusing
from herringbone_parallel.torch.horovod.api import *  # noqa: F403
from herringbone_parallel.torch.horovod.api import __all__ as __all__

__getattr__ = refusing("horovod.torch")
