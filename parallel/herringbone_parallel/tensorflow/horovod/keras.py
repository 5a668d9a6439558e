"""Horovod's names for Keras, as far as example scripts use them: `import horovod.tensorflow.keras as hvd`."""

from __future__ import annotations

from typing import Any

import keras

from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.state import (
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from herringbone_parallel.tensorflow.data_parallel.variables import broadcast_global_variables, broadcast_variables
from herringbone_parallel.tensorflow.horovod import callbacks, facts
from herringbone_parallel.tensorflow.horovod.api import (
    Average,
    DistributedOptimizer,
    Max,
    Min,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_object,
    init,
)
from herringbone_parallel.tensorflow.horovod.facts import *  # noqa: F403

# ranks
__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", *facts.__all__]
# tensors and objects
__all__ += ["allreduce", "allgather", "broadcast", "broadcast_object", "Average", "Sum", "Min", "Max", "Compression"]
# variables, gradients, models
__all__ += ["broadcast_variables", "broadcast_global_variables", "DistributedOptimizer", "callbacks", "load_model"]


def load_model(filepath: Any, custom_objects: Any = None, compression: Any = Compression.none) -> Any:
    """Return a saved model; its optimizer keeps the saved state and applies averages over all ranks."""
    model = keras.models.load_model(filepath, custom_objects=custom_objects)
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
