"""`smdistributed.modelparallel.torch.nn` under AWS's import path."""

from herringbone_parallel.torch.model_parallel.nn import *  # noqa: F403
from herringbone_parallel.torch.model_parallel.nn import __getattr__  # noqa: F401
