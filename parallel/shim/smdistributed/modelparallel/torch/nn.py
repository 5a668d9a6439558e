"""`smdistributed.modelparallel.torch.nn` under AWS's import path."""

from herringbone_parallel.torch.nn import *  # noqa: F403
from herringbone_parallel.torch.nn import __getattr__  # noqa: F401
