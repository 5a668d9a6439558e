"""The data-parallel library for MXNet, under Horovod's names: `import horovod.mxnet as hvd` in a launched rank.

    hvd.init()
    net.initialize()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

AWS has no library of its own for MXNet. Its example scripts use Horovod, which can no longer be built. In the ranks of
a job under `mpi` these names exist if the real package is not installed. Unsupported arguments raise an error.
"""

from herringbone_parallel.mxnet.require import require_mxnet

require_mxnet()

from herringbone_parallel.mxnet.operations import (  # noqa: E402 - after the check for MXNet, whose message names what is missing
    allgather,
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
)
from herringbone_parallel.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from herringbone_parallel.mxnet.parameters import broadcast_parameters  # noqa: E402
from herringbone_parallel.mxnet.trainer import DistributedTrainer  # noqa: E402
from herringbone_parallel.reduce.horovod import (  # noqa: E402
    Average,
    Compression,
    Max,
    Min,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

# ranks
__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"]
# arrays and objects
__all__ += ["allreduce", "allreduce_", "allgather", "broadcast", "broadcast_", "broadcast_object", "allgather_object"]
__all__ += ["barrier", "Average", "Sum", "Min", "Max", "Compression"]
# parameters and gradients
__all__ += ["broadcast_parameters", "DistributedTrainer", "DistributedOptimizer"]
