"""AWS's import path of `clip_grad_norm_`."""

from herringbone_parallel.torch.sharding.scripts import clip_grad_norm_  # noqa: F401
