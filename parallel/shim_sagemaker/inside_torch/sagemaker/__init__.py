"""`import torch.sagemaker as tsm` in a launched rank: Herringbone's open library."""

from torch.sagemaker import checkpoint, delayed_param, distributed, grad_norm, moe, nn, utils  # noqa: F401

from herringbone_parallel.torch.sharding.api import *  # noqa: F403
from herringbone_parallel.torch.sharding.api import __all__  # noqa: F401
