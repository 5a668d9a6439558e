"""Activation offloading: the saved inputs of checkpointed layers wait in the host's memory for their backward.

    host_copy   one tensor: its copy in host memory, and the copies between host and device
    saved       the hooks by which autograd hands saved tensors over, and takes them back
    layers      a model on one rank: layers are loaded back in the reverse order of their forward (version 2)

Both versions of the library use it, and it knows neither.
"""

from herringbone_parallel.torch.offloading.layers import LayerOffloading

__all__ = ["LayerOffloading"]
