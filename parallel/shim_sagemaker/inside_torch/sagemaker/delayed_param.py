"""AWS's import path of `DelayedParamIniter`."""

from herringbone_parallel.torch.sharding.delayed_param import DelayedParamIniter  # noqa: F401
