"""`TransformerLayer`: AWS's name for the class of a transformed model's layers.

AWS's `transform` replaces a model's layers by its own; ours keeps them. Scripts name the class to say which modules
`FullyShardedDataParallel` and `apply_activation_checkpointing` treat one by one, so it stands for each of them.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from herringbone_parallel.torch.sharding import state as states


class _IsALayer(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, nn.Module) and states.is_initialized() and instance in states.get().layers


class TransformerLayer(metaclass=_IsALayer):
    """The members of the lists of a model that `transform` has returned: `isinstance(module, TransformerLayer)`."""
