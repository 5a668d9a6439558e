"""Public names of the data-parallel library for TensorFlow: `smdistributed.dataparallel.tensorflow`.

import smdistributed.dataparallel.tensorflow as sdp

sdp.init()
with tf.GradientTape() as tape:
    loss = ...
tape = sdp.DistributedGradientTape(tape)
optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""

from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import ReduceOp
from herringbone_parallel.tensorflow.data_parallel.operations import allreduce, broadcast, oob_allreduce, overlap
from herringbone_parallel.tensorflow.data_parallel.optimizer import DistributedOptimizer
from herringbone_parallel.tensorflow.data_parallel.state import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from herringbone_parallel.tensorflow.data_parallel.tape import DistributedGradientTape
from herringbone_parallel.tensorflow.data_parallel.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)

# ranks
__all__ = ["init", "is_initialized", "shutdown", "rank", "size", "local_rank", "local_size"]
# gradients
__all__ += ["DistributedGradientTape", "DistributedOptimizer", "Compression", "ReduceOp", "allreduce", "overlap"]
# other values
__all__ += ["oob_allreduce", "broadcast", "broadcast_variables", "broadcast_global_variables"]
__all__ += ["BroadcastGlobalVariablesHook"]
