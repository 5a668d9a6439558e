"""The data-parallel library for TensorFlow, as scripts see it under `smdistributed.dataparallel.tensorflow`.

import smdistributed.dataparallel.tensorflow as sdp

sdp.init()
with tf.GradientTape() as tape:
    loss = ...
tape = sdp.DistributedGradientTape(tape)
optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""

from herringbone_parallel.tensorflow.absent import require_tensorflow

require_tensorflow()

from herringbone_parallel.tensorflow.compression import Compression  # noqa: E402
from herringbone_parallel.tensorflow.gradients import ReduceOp  # noqa: E402
from herringbone_parallel.tensorflow.operations import allreduce, broadcast, oob_allreduce, overlap  # noqa: E402
from herringbone_parallel.tensorflow.optimizer import DistributedOptimizer  # noqa: E402
from herringbone_parallel.tensorflow.state import (  # noqa: E402
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from herringbone_parallel.tensorflow.tape import DistributedGradientTape  # noqa: E402
from herringbone_parallel.tensorflow.variables import (  # noqa: E402
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
