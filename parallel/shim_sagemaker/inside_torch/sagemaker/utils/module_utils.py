"""Make a module's parameters, and move its buffers."""

from herringbone_parallel.torch.sharding.scripts import empty_module_params, move_buffers_to_device  # noqa: F401
